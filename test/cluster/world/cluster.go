// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/shunt-lb/shunt/test/cluster/binaries"
	"github.com/shunt-lb/shunt/test/cluster/controlplane"
	"github.com/shunt-lb/shunt/test/cluster/probe"
	"github.com/shunt-lb/shunt/test/lab"
	"github.com/shunt-lb/shunt/test/lab/process"
)

// Zones of the nodes.
const (
	TestedZone = "zone-a"
	RemoteZone = "zone-b"

	MarkerNamespace = "markers"
	settlePatience  = 90 * time.Second
)

// Cluster is a control plane with the nodes that each world has.
type Cluster struct {
	Control   *controlplane.ControlPlane
	API       kubernetes.Interface
	Reference binaries.Reference

	markers atomic.Int64
}

// NewCluster starts a control plane on a node of its own lab and makes the nodes' objects.
func NewCluster(l *lab.Lab) (*Cluster, error) {
	reference, err := binaries.BuildReference()
	if err != nil {
		return nil, err
	}
	control, err := controlplane.Start(l.Node(lab.NodeOptions{Name: "control-plane"}), reference)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Control: control, Reference: reference}
	if c.API, err = control.Admin(); err != nil {
		return nil, err
	}
	return c, c.makeObjects(context.Background())
}

func (c *Cluster) makeObjects(ctx context.Context) error {
	for _, node := range nodes() {
		status := node.Status
		created, err := c.API.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("make node: %w", err)
		}
		created.Status = status
		if _, err := c.API.CoreV1().Nodes().UpdateStatus(ctx, created, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("set status of node: %w", err)
		}
	}
	if err := c.admitAgent(ctx); err != nil {
		return err
	}
	return c.MakeNamespace(ctx, MarkerNamespace)
}

// admitAgent gives the agent's user the role that deploy/ has for it.
func (c *Cluster) admitAgent(ctx context.Context) error {
	file, err := binaries.Deploy("base", "clusterrole.yaml")
	if err != nil {
		return err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the agent's role: %w", err)
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(content, role); err != nil {
		return fmt.Errorf("read the agent's role: %w", err)
	}
	if _, err := c.API.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the agent's role: %w", err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: shuntUser},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: shuntUser}},
	}
	if _, err := c.API.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("bind the agent to its role: %w", err)
	}
	return nil
}

// nodes are the nodes of every world.
func nodes() []*corev1.Node {
	var all []*corev1.Node
	for i, name := range []string{Tested, Remote} {
		pods := []string{fmt.Sprintf("10.244.%d.0/24", i+1), fmt.Sprintf("fd00:10:244:%x::/64", i+1)}
		all = append(all, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelTopologyZone: []string{TestedZone, RemoteZone}[i],
			}},
			Spec: corev1.NodeSpec{PodCIDR: pods[0], PodCIDRs: pods},
			Status: corev1.NodeStatus{
				Addresses: []corev1.NodeAddress{
					{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.20.0.%d", 10+i)},
					{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("fd00:172:20::%x", 10+i)},
				},
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	return all
}

// MakeNamespace makes a namespace.
func (c *Cluster) MakeNamespace(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.API.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make namespace: %w", err)
	}
	return nil
}

// Settle waits until the proxies of the worlds have programmed everything that the API server has accepted before the
// call. Events of one resource come in order, so a Service and slices that are made now are seen after all others:
// when they answer, the others are in force. It says how long that took.
func (c *Cluster) Settle(ctx context.Context, worlds ...*World) (time.Duration, error) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	addresses, remove, err := c.makeMarker(ctx)
	if err != nil {
		return 0, err
	}
	defer remove()
	for _, w := range worlds {
		for _, address := range addresses {
			if err := w.await(ctx, address); err != nil {
				return 0, fmt.Errorf("wait for the proxy of %s: %w (its log is %s)", w.Name, err, w.LogFile())
			}
		}
	}
	return time.Since(begin), nil
}

func (c *Cluster) makeMarker(ctx context.Context) ([]netip.AddrPort, func(), error) {
	name := fmt.Sprintf("marker-%d", c.markers.Add(1))
	policy := corev1.IPFamilyPolicyRequireDualStack
	service, err := c.API.CoreV1().Services(MarkerNamespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: &policy,
			Ports:          []corev1.ServicePort{{Port: 1, Protocol: corev1.ProtocolTCP}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("make marker: %w", err)
	}
	for _, address := range []string{"10.244.1.3", "fd00:10:244:1::3"} {
		slice := Slice(name, []string{address}, Port)
		if _, err := c.API.DiscoveryV1().EndpointSlices(MarkerNamespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
			return nil, nil, fmt.Errorf("make marker: %w", err)
		}
	}
	var addresses []netip.AddrPort
	for _, ip := range service.Spec.ClusterIPs {
		addresses = append(addresses, netip.AddrPortFrom(netip.MustParseAddr(ip), 1))
	}
	return addresses, func() {
		ctx := context.WithoutCancel(ctx)
		_ = c.API.CoreV1().Services(MarkerNamespace).Delete(ctx, name, metav1.DeleteOptions{})
		_ = c.API.DiscoveryV1().EndpointSlices(MarkerNamespace).DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
	}, nil
}

// Slice is a slice of ready endpoints on one unnamed TCP port.
func Slice(service string, addresses []string, port int32) *discoveryv1.EndpointSlice {
	kind := discoveryv1.AddressTypeIPv4
	if netip.MustParseAddr(addresses[0]).Is6() {
		kind = discoveryv1.AddressTypeIPv6
	}
	name, protocol := "", corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: service + "-",
			Labels:       map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "test"},
		},
		AddressType: kind,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return slice
}

// await asks an address until somebody answers, as long as there is a proxy that may let them.
func (w *World) await(ctx context.Context, address netip.AddrPort) error {
	for {
		result, err := probe.Run(w.Client, probe.Request{
			Network: process.TCP, To: address, Count: 1, Timeout: 100 * time.Millisecond,
		})
		if err != nil {
			return err
		}
		if len(result.Servers) > 0 {
			return nil
		}
		select {
		case <-w.proxy.Done():
			return fmt.Errorf("the proxy has ended: %w", w.proxy.Wait())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %v", address, result.Failures)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
