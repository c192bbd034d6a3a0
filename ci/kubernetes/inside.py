#!/usr/bin/env python3
"""Runs a system call inside another process of this machine (x86_64), as a debugger does. A process that is confined is so by each of its threads:
nothing else shows what it may do.

inside.py PID open PATH    Opens a file to read, in each thread. Prints the outcomes, without repetitions: "opened", or the error's name.
inside.py PID take MIB     Takes memory of this size and writes to it, MIB by MIB, until it gets no more. Prints how much it got.
"""
import ctypes, errno, os, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_ulong, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
ATTACH, DETACH, GETREGS, SETREGS, STEP, POKE, PEEK, THREADS = 16, 17, 12, 13, 9, 4, 1, 0x40000000
OPEN, CLOSE, MMAP = 257, 3, 9
names = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base ds es fs gs".split()


class Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulong) for name in names]


def ptrace(request, thread, data=None, address=None):
    ctypes.set_errno(0)
    done = libc.ptrace(request, thread, address, data)
    if done == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), f"ptrace {request}: {os.strerror(ctypes.get_errno())}")
    return done


def a_syscall(pid):
    """The address of an instruction `syscall` in the program, or in what the kernel maps into each program."""
    for line in open(f"/proc/{pid}/maps"):
        if " r-xp " in line:
            begin, end = (int(it, 16) for it in line.split()[0].split("-"))
            with open(f"/proc/{pid}/mem", "rb") as memory:
                memory.seek(begin)
                try:
                    at = memory.read(end - begin).find(b"\x0f\x05")
                except OSError:
                    continue
            if at >= 0:
                return begin + at
    sys.exit("no system call is in its programs")


class Thread:
    """A thread that is stopped, and goes on as it was."""

    def __init__(self, thread, instruction):
        self.thread, self.instruction, self.saved = thread, instruction, Registers()

    def __enter__(self):
        ptrace(ATTACH, self.thread)
        os.waitpid(self.thread, THREADS)
        ptrace(GETREGS, self.thread, ctypes.addressof(self.saved))
        return self

    def __exit__(self, *_):
        ptrace(SETREGS, self.thread, ctypes.addressof(self.saved))
        ptrace(DETACH, self.thread)

    def put(self, text):
        """Writes a text below the stack, and its zone that functions may use; its address."""
        text += b"\0" * (8 - len(text) % 8)
        at = (self.saved.rsp - 256 - len(text)) & ~15
        for step in range(0, len(text), 8):
            ptrace(POKE, self.thread, int.from_bytes(text[step : step + 8], "little"), at + step)
        return at

    def call(self, number, *arguments):
        registers = Registers.from_buffer_copy(self.saved)
        registers.rip, registers.rax, registers.orig_rax = self.instruction, number, 2**64 - 1
        for name, value in zip("rdi rsi rdx r10 r8 r9".split(), arguments):
            setattr(registers, name, value % 2**64)
        ptrace(SETREGS, self.thread, ctypes.addressof(registers))
        ptrace(STEP, self.thread)
        _, status = os.waitpid(self.thread, THREADS)
        if not os.WIFSTOPPED(status):
            sys.exit("it ended")
        ptrace(GETREGS, self.thread, ctypes.addressof(registers))
        return ctypes.c_long(registers.rax).value


pid, what, argument = int(sys.argv[1]), sys.argv[2], sys.argv[3]
instruction = a_syscall(pid)
if what == "open":
    outcomes = set()
    for name in os.listdir(f"/proc/{pid}/task"):
        with Thread(int(name), instruction) as thread:
            got = thread.call(OPEN, -100, thread.put(os.fsencode(argument)), os.O_RDONLY, 0)
            if got >= 0:
                thread.call(CLOSE, got)
            outcomes.add("opened" if got >= 0 else errno.errorcode[-got])
    print(*sorted(outcomes))
elif what == "take":
    step, taken, private_anonymous_populated = int(argument), 0, 0x8022
    with Thread(pid, instruction) as thread:
        while (got := thread.call(MMAP, 0, step << 20, 3, private_anonymous_populated, -1, 0)) > 0:
            taken += step
    print(taken, errno.errorcode[-got])
