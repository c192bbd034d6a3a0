// csi-node-driver-registrar for the lab. Enters: upstream's flags (README of kubernetes-csi/node-driver-registrar, 2.14). Leaves: a
// driver that the kubelet knows; an end with an error when the kubelet does not take it.
//
// In Go, because the kubelet names the socket's path as the authority of its calls, and the HTTP/2 library of every Rust gRPC
// server refuses a path there (PROTOCOL_ERROR; the kubelet's dial in pluginmanager/operationexecutor sets no authority).
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

var (
	csiAddress = flag.String("csi-address", "/run/csi/socket", "the driver's socket, as this container sees it")
	endpoint   = flag.String("kubelet-registration-path", "", "the driver's socket, as the kubelet sees it")
	registry   = flag.String("plugin-registration-path", "/registration", "where the kubelet looks for sockets")
	address    = flag.String("http-endpoint", "", "where /healthz is answered; empty: nowhere")
	port       = flag.Int("health-port", 0, "the same by a port")
	within     = flag.Duration("timeout", time.Second, "how long the driver may take for an answer")
	_          = flag.Int("v", 0, "how much is logged: accepted, everything is")
)

type server struct {
	registration.UnimplementedRegistrationServer
	driver  string
	refused chan string
}

func (s *server) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	log.Print("the kubelet asks who is there")
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: s.driver, Endpoint: *endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (s *server) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if status.PluginRegistered {
		log.Printf("the kubelet knows %s", s.driver)
	} else {
		s.refused <- status.Error
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// The driver's name, once it answers: it starts beside us.
func driverName() string {
	connection, err := grpc.NewClient("unix://"+strings.TrimPrefix(*csiAddress, "unix://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		log.Fatalf("the driver's socket %s: %v", *csiAddress, err)
	}
	defer connection.Close()
	for said := ""; ; time.Sleep(200 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), *within)
		info, err := csi.NewIdentityClient(connection).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		cancel()
		if err == nil {
			return info.Name
		}
		if words := err.Error(); words != said {
			log.Printf("waiting for the driver at %s: %s", *csiAddress, words)
			said = words
		}
	}
}

func main() {
	flag.Parse()
	if *endpoint == "" {
		log.Fatal("--kubelet-registration-path is missing: the kubelet must find the driver's socket")
	}
	service := &server{driver: driverName(), refused: make(chan string, 1)}
	socket := filepath.Join(*registry, service.driver+"-reg.sock")
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		log.Fatalf("removing the socket of an earlier process: %v", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatalf("listening for the kubelet: %v", err)
	}
	calls := grpc.NewServer()
	registration.RegisterRegistrationServer(calls, service)
	go func() { log.Fatal(calls.Serve(listener)) }()
	log.Printf("registration of %s is served at %s", service.driver, socket)
	if *address == "" && *port != 0 {
		*address = fmt.Sprintf(":%d", *port)
	}
	if *address != "" {
		http.HandleFunc("/healthz", func(answer http.ResponseWriter, _ *http.Request) {
			if _, err := os.Stat(socket); err != nil {
				http.Error(answer, err.Error(), http.StatusInternalServerError)
			}
		})
		go func() { log.Fatal(http.ListenAndServe(*address, nil)) }()
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	select {
	case why := <-service.refused:
		log.Fatalf("the kubelet did not register %s: %s", service.driver, why)
	case <-signals:
		calls.Stop()
		os.Remove(socket)
	}
}
