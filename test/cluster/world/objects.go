// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/retry"
)

// addresses of the servers, as the lab numbers pods: the client is the first of its node.
var addresses = map[string][2]string{
	"local-1":  {"10.244.1.3", "fd00:10:244:1::3"},
	"local-2":  {"10.244.1.4", "fd00:10:244:1::4"},
	"remote-1": {"10.244.2.2", "fd00:10:244:2::2"},
	"remote-2": {"10.244.2.3", "fd00:10:244:2::3"},
	"host-1":   {"172.20.0.10", "fd00:172:20::a"},
	"host-2":   {"172.20.0.11", "fd00:172:20::b"},
}

// Address4 is a server's IPv4 address.
func Address4(server string) string { return addresses[server][0] }

// Address6 is a server's IPv6 address.
func Address6(server string) string { return addresses[server][1] }

// PodName is the name of the Pod object of a server for an app.
func PodName(app, server string) string { return app + "-" + server }

// MakePod makes a ready Pod that stands for a server. Its container names the server's ports: "main" is Port for
// the first server of a node and OtherPort for the second.
func (c *Cluster) MakePod(ctx context.Context, namespace, app, server string) error {
	main := int32(Port)
	if strings.HasSuffix(server, "2") {
		main = OtherPort
	}
	host := strings.HasPrefix(server, "host")
	containerPort := corev1.ContainerPort{Name: "main", ContainerPort: main, Protocol: corev1.ProtocolTCP}
	if host {
		containerPort.HostPort = main
	}
	grace := int64(3600)
	pod, err := c.API.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: PodName(app, server), Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			NodeName: NodeOf(server), HostNetwork: host, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "server", Image: "server", Ports: []corev1.ContainerPort{containerPort}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make pod: %w", err)
	}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: Address4(server),
		PodIPs:     []corev1.PodIP{{IP: Address4(server)}, {IP: Address6(server)}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	if _, err := c.API.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("set status of pod: %w", err)
	}
	return nil
}

// SetReady sets the readiness of a Pod.
func (c *Cluster) SetReady(ctx context.Context, namespace, app, server string, ready bool) error {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		pod, err := c.API.CoreV1().Pods(namespace).Get(ctx, PodName(app, server), metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
		_, err = c.API.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	})
}

// AwaitSlices waits until the controller has written the slices of a Service's pods as they are now.
func (c *Cluster) AwaitSlices(ctx context.Context, service *corev1.Service) error {
	if len(service.Spec.Selector) == 0 || service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	return c.Await(ctx, "the slices of "+service.Name, func() (bool, error) {
		want, err := c.wantedEndpoints(ctx, service)
		if err != nil {
			return false, err
		}
		have, err := c.publishedEndpoints(ctx, service)
		if err != nil {
			return false, err
		}
		return slices.Equal(want, have), fmt.Errorf("have %v, want %v", have, want)
	})
}

func (c *Cluster) wantedEndpoints(ctx context.Context, service *corev1.Service) ([]string, error) {
	pods, err := c.API.CoreV1().Pods(service.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(service.Spec.Selector).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var lines []string
	for _, pod := range pods.Items {
		serving := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		terminating := pod.DeletionTimestamp != nil
		ready := service.Spec.PublishNotReadyAddresses || serving && !terminating // as the controller has it
		for _, ip := range pod.Status.PodIPs {
			if hasFamily(service, strings.Contains(ip.IP, ":")) {
				lines = append(lines, endpointLine(ip.IP, ready, serving, terminating, service.Spec.TrafficDistribution != nil && ready))
			}
		}
	}
	if len(lines) > 0 {
		lines = append(lines, numberedPorts(service)...)
	}
	slices.Sort(lines)
	return lines, nil
}

func endpointLine(address string, ready, serving, terminating, hinted bool) string {
	return fmt.Sprintf("%s ready=%t serving=%t terminating=%t hinted=%t", address, ready, serving, terminating, hinted)
}

// numberedPorts are the lines of ports whose number does not depend on the pod.
func numberedPorts(service *corev1.Service) []string {
	var lines []string
	for _, port := range service.Spec.Ports {
		if port.TargetPort.IntValue() != 0 {
			lines = append(lines, fmt.Sprintf("port %s/%s %d", port.Name, port.Protocol, port.TargetPort.IntValue()))
		}
	}
	return lines
}

func hasFamily(service *corev1.Service, six bool) bool {
	wanted := corev1.IPv4Protocol
	if six {
		wanted = corev1.IPv6Protocol
	}
	return slices.Contains(service.Spec.IPFamilies, wanted)
}

func (c *Cluster) publishedEndpoints(ctx context.Context, service *corev1.Service) ([]string, error) {
	list, err := c.API.DiscoveryV1().EndpointSlices(service.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service.Name + "," +
			discoveryv1.LabelManagedBy + "=endpointslice-controller.k8s.io",
	})
	if err != nil {
		return nil, fmt.Errorf("list slices: %w", err)
	}
	numbered := numberedPorts(service)
	var lines []string
	for _, slice := range list.Items {
		for _, endpoint := range slice.Endpoints {
			condition := endpoint.Conditions
			lines = append(lines, endpointLine(endpoint.Addresses[0], *condition.Ready, *condition.Serving,
				*condition.Terminating, endpoint.Hints != nil && service.Spec.TrafficDistribution != nil))
		}
		for _, port := range slice.Ports {
			line := fmt.Sprintf("port %s/%s %d", *port.Name, *port.Protocol, *port.Port)
			if len(slice.Endpoints) > 0 && (slices.Contains(numbered, line) || len(numbered) == len(service.Spec.Ports)) {
				lines = append(lines, line)
			}
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines), nil
}

// AwaitMirror waits until a slice mirrors the Endpoints of a Service.
func (c *Cluster) AwaitMirror(ctx context.Context, namespace, service string) error {
	return c.Await(ctx, "a slice of Endpoints "+service, func() (bool, error) {
		list, err := c.API.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=" + service,
		})
		return err == nil && len(list.Items) > 0, err
	})
}

// Await waits until something is so.
func (c *Cluster) Await(ctx context.Context, what string, so func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	for {
		done, err := so()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, errors.Join(err, ctx.Err()))
		case <-time.After(10 * time.Millisecond):
		}
	}
}
