// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/shunt-lb/shunt/pkg/source"
)

// environment names the API server to the process whose memory is measured.
const environment = "SHUNT_TEST_API_SERVER"

func TestMain(m *testing.M) {
	if server := os.Getenv(environment); server != "" {
		if err := consume(server); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// consume keeps what a consumer keeps, until synced, and prints the memory that this process needed.
func consume(server string) error {
	client, err := NewClient(Config{APIServers: []string{server}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	events, done := make(chan source.Event), make(chan error, 1)
	go func() { done <- New(client, "n1", DefaultTiming()).Run(ctx, events) }()
	var kept []any
	for {
		select {
		case err := <-done:
			return err
		case e := <-events:
			switch e := e.(type) {
			case source.SetService:
				kept = append(kept, e.Service)
			case source.SetSlice:
				kept = append(kept, e.Slice)
			case source.Synced:
				return printMemory(len(kept))
			}
		}
	}
}

func printMemory(objects int) error {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return err
	}
	defer f.Close()
	out := fmt.Sprint(objects)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if words := strings.Fields(lines.Text()); words[0] == "VmHWM:" || words[0] == "VmRSS:" {
			out += " " + words[1]
		}
	}
	_, err = fmt.Println(out)
	return err
}

// BenchmarkResidentMemory measures a process that follows 10,000 Services of five endpoints each.
func BenchmarkResidentMemory(b *testing.B) {
	for _, streams := range []bool{true, false} {
		b.Run(fmt.Sprintf("streams=%v", streams), func(b *testing.B) {
			s := newAPIServer(b, streams)
			const services = 10000
			for i := range services {
				s.put(bigService(i), bigSlice(i))
			}
			for b.Loop() {
				cmd := exec.CommandContext(b.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), environment+"="+s.http.URL)
				cmd.Stderr = os.Stderr
				out, err := cmd.Output()
				if err != nil {
					b.Fatal(err)
				}
				objects, peak, now, err := readMemory(string(out))
				if err != nil || objects != 2*services {
					b.Fatalf("%d objects: %q, %v", objects, out, err)
				}
				b.ReportMetric(peak, "peak-MiB")
				b.ReportMetric(now, "resident-MiB")
			}
		})
	}
}

func readMemory(out string) (objects int, peak, now float64, err error) {
	words := strings.Fields(out)
	if len(words) != 3 {
		return 0, 0, 0, errors.New("want three numbers")
	}
	var numbers [3]float64
	for i, w := range words {
		n, e := strconv.Atoi(w)
		err = errors.Join(err, e)
		numbers[i] = float64(n)
	}
	const kiB = 1024
	return int(numbers[0]), numbers[1] / kiB, numbers[2] / kiB, err
}

// bigService has what a real one carries along.
func bigService(i int) *v1.Service {
	s := service(fmt.Sprintf("service-%05d", i), fmt.Sprintf("10.%d.%d.%d", 96+i/62500, i/250%250, i%250+1))
	s.UID = uuid.NewUUID()
	s.Labels = map[string]string{"app.kubernetes.io/name": s.Name, "app.kubernetes.io/managed-by": "Helm"}
	s.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 600)}
	s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "helm", FieldsV1: metav1.NewFieldsV1("{" + strings.Repeat(" ", 500) + "}")}}
	return s
}

func bigSlice(i int) *discovery.EndpointSlice {
	s := slice(fmt.Sprintf("service-%05d-x7k2p", i), "10.0.0.1")
	s.UID = uuid.NewUUID()
	s.Labels[discovery.LabelServiceName] = fmt.Sprintf("service-%05d", i)
	s.Endpoints = nil
	for e := range 5 {
		node := fmt.Sprintf("node-%03d.example.org", (i+e)%500)
		ready := true
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 128+e, i/250, i%250+1)}, NodeName: &node,
			Conditions: discovery.EndpointConditions{Ready: &ready, Serving: &ready},
		})
	}
	return s
}
