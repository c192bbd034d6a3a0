"""numpy copies an array out of a mapped file downwards; its first page is touched first, as memcpy does."""

import kit
import mapped

kit.main(mapped.prepare, lambda folder, small: mapped.copy(folder, small, True), needed=mapped.needed)
