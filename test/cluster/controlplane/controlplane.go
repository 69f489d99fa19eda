// SPDX-License-Identifier: Apache-2.0

// Package controlplane runs a real etcd, kube-apiserver and kube-controller-manager in a node of the lab. Nobody
// outside of the lab's namespaces can reach them. There is no scheduler and no kubelet: a test writes the status of
// nodes and pods itself, and the controllers make the EndpointSlices from it.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/shunt-lb/shunt/test/cluster/binaries"
	"github.com/shunt-lb/shunt/test/lab"
)

const (
	apiPort   = 6443
	etcdPort  = 2379
	readyWait = 2 * time.Minute
	// GatewayAddress is where other labs may offer this API server, see Relay: its certificate is valid for it.
	GatewayAddress = "172.20.0.5"
)

// Ranges of the cluster.
const (
	ServiceRange4 = "10.96.0.0/16"
	ServiceRange6 = "fd00:10:96::/112"
	PodRange4     = "10.244.0.0/16"
	PodRange6     = "fd00:10:244::/48"
)

// controllers are those that make what a service proxy watches.
var controllers = []string{
	"endpointslice-controller", "endpointslice-mirroring-controller", "endpoints-controller",
	"service-cidr-controller", "namespace-controller", "serviceaccount-controller",
}

// ControlPlane is a running control plane.
type ControlPlane struct {
	node      *lab.Node
	reference binaries.Reference
	authority *authority
	directory string

	etcd, apiServer, controllerManager *lab.Program
	admin                              *rest.Config
}

// Start starts a control plane on the node and waits until it is ready. It ends with the lab.
func Start(node *lab.Node, reference binaries.Reference) (*ControlPlane, error) {
	c := &ControlPlane{node: node, reference: reference, directory: node.File("control-plane")}
	steps := []func() error{
		c.makeCredentials, c.startEtcd, c.StartAPIServer, c.connectAdmin, c.AwaitReady, c.startControllerManager,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, fmt.Errorf("start control plane: %w", err)
		}
	}
	return c, nil
}

func (c *ControlPlane) file(name string) string { return filepath.Join(c.directory, name) }

// Address is where the API server listens.
func (c *ControlPlane) Address() netip.AddrPort { return netip.AddrPortFrom(c.node.Address4, apiPort) }

func (c *ControlPlane) makeCredentials() error {
	if err := os.MkdirAll(c.directory, 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	var err error
	if c.authority, err = newAuthority(); err != nil {
		return err
	}
	server, err := c.authority.server(c.node.Address4, netip.MustParseAddr("127.0.0.1"),
		netip.MustParseAddr(GatewayAddress), netip.MustParseAddr("10.96.0.1"))
	if err != nil {
		return err
	}
	_, accountKey, err := newKey()
	if err != nil {
		return err
	}
	return writeFiles(map[string][]byte{
		c.file("ca.crt"): c.authority.pem, c.file("account.key"): accountKey,
		c.file("server.crt"): server.certificate, c.file("server.key"): server.key,
	})
}

func (c *ControlPlane) startEtcd() error {
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", etcdPort), "http://127.0.0.1:2380"
	var err error
	c.etcd, err = c.start("etcd", []string{
		"--data-dir=" + c.file("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
	})
	return err
}

// StartAPIServer starts the API server, again after StopAPIServer; AwaitReady waits for it.
func (c *ControlPlane) StartAPIServer() error {
	var err error
	c.apiServer, err = c.start("kube-apiserver", []string{
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", etcdPort),
		fmt.Sprintf("--secure-port=%d", apiPort), "--bind-address=0.0.0.0",
		"--advertise-address=" + c.node.Address4.String(),
		"--service-cluster-ip-range=" + ServiceRange4 + "," + ServiceRange6,
		"--tls-cert-file=" + c.file("server.crt"), "--tls-private-key-file=" + c.file("server.key"),
		"--client-ca-file=" + c.file("ca.crt"), "--authorization-mode=RBAC", "--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.file("account.key"),
		"--service-account-signing-key-file=" + c.file("account.key"),
		// Pods are objects alone here, so they need no token; and tests choose externalIPs.
		"--disable-admission-plugins=ServiceAccount",
		// A test's own requests are many, and must not wait behind fairness.
		"--enable-priority-and-fairness=false", "--max-requests-inflight=0", "--max-mutating-requests-inflight=0",
		"--etcd-compaction-interval=0", "--shutdown-delay-duration=0",
	})
	return err
}

func (c *ControlPlane) startControllerManager() error {
	kubeconfig, err := c.Kubeconfig("controller-manager", c.Address(), "system:kube-controller-manager", "system:masters")
	if err != nil {
		return err
	}
	c.controllerManager, err = c.start("kube-controller-manager", []string{
		"--kubeconfig=" + kubeconfig, "--controllers=" + strings.Join(controllers, ","),
		"--leader-elect=false", "--use-service-account-credentials=false", "--secure-port=0",
		"--kube-api-qps=2000", "--kube-api-burst=4000", "--concurrent-service-endpoint-syncs=10",
		"--service-cluster-ip-range=" + ServiceRange4 + "," + ServiceRange6,
	})
	return err
}

// StopAPIServer kills the API server; its watch caches go with it.
func (c *ControlPlane) StopAPIServer() { c.apiServer.Kill() }

// start runs a program of the reference on the node, its output in a file of the lab's.
func (c *ControlPlane) start(name string, arguments []string) (*lab.Program, error) {
	log, err := os.OpenFile(c.file(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	command := exec.Command(c.reference.Path(name), arguments...)
	command.Stdout, command.Stderr = log, log
	return c.node.Start(name, command), nil
}

// Log is what a program has written so far.
func (c *ControlPlane) Log(program string) string {
	content, err := os.ReadFile(c.file(program + ".log"))
	if err != nil {
		return err.Error()
	}
	return string(content)
}

func (c *ControlPlane) connectAdmin() error {
	certificate, err := c.authority.client("admin", "system:masters")
	if err != nil {
		return err
	}
	c.admin = &rest.Config{
		Host: "https://" + c.Address().String(), QPS: -1, Dial: c.Dial, WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{
			ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
		TLSClientConfig: rest.TLSClientConfig{
			CAData: c.authority.pem, CertData: certificate.certificate, KeyData: certificate.key,
		},
	}
	return nil
}

// Admin is a client with all rights.
func (c *ControlPlane) Admin() (kubernetes.Interface, error) { return kubernetes.NewForConfig(c.admin) }

// Dial connects from inside the node's namespace.
func (c *ControlPlane) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return dialIn(ctx, c.node.Namespace, network, address)
}

// AwaitReady waits until the API server says that it is ready.
func (c *ControlPlane) AwaitReady() error {
	client, err := c.Admin()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(readyWait)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err := client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		cancel()
		switch {
		case err == nil:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("wait for the API server: %w", err)
		}
		select {
		case <-c.apiServer.Done():
			return errors.New("the API server ended: " + lastLines(c.Log("kube-apiserver")))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Kubeconfig writes a kubeconfig for a user who finds the API server at an address.
func (c *ControlPlane) Kubeconfig(name string, server netip.AddrPort, user string, groups ...string) (string, error) {
	certificate, err := c.authority.client(user, groups...)
	if err != nil {
		return "", err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["lab"] = &clientcmdapi.Cluster{
		Server: "https://" + server.String(), CertificateAuthorityData: c.authority.pem,
	}
	config.AuthInfos["user"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: certificate.certificate, ClientKeyData: certificate.key,
	}
	config.Contexts["lab"] = &clientcmdapi.Context{Cluster: "lab", AuthInfo: "user"}
	config.CurrentContext = "lab"
	path := c.file(name + ".kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("write kubeconfig of %s: %w", user, err)
	}
	return path, nil
}

// Kubectl runs kubectl with all rights, as a process of the node.
func (c *ControlPlane) Kubectl(stdin string, arguments ...string) (string, error) {
	kubeconfig, err := c.Kubeconfig("admin", c.Address(), "admin", "system:masters")
	if err != nil {
		return "", err
	}
	var output strings.Builder
	command := exec.Command(c.reference.Path("kubectl"), append([]string{"--kubeconfig=" + kubeconfig}, arguments...)...)
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(stdin), &output, &output
	command.SysProcAttr = &syscall.SysProcAttr{}
	if err := c.node.Start("kubectl", command).Wait(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s", strings.Join(arguments, " "), err, output.String())
	}
	return output.String(), nil
}

func lastLines(text string) string {
	const most = 2000
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return text
}
