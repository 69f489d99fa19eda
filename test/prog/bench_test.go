// SPDX-License-Identifier: Apache-2.0

package prog

import (
	"fmt"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
)

// measure runs a program on one packet again and again, in the kernel, and reports what a run takes. The packet is not
// rewritten, or it would not be the same the next time. The first includes what a test run costs by itself.
func (w *world) measure(b *testing.B, frame []byte) {
	b.Helper()
	copy(frame, make([]byte, 6)) // the loopback device's MAC address: a repeated run is on that
	_, took, err := w.programs["tc_ingress"].Benchmark(frame, b.N, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(took.Nanoseconds()), "ns/run")
}

func BenchmarkNotIP(b *testing.B) {
	frame := make([]byte, 64)
	frame[12], frame[13] = 0x08, 0x06
	newWorld(b).measure(b, frame)
}

// BenchmarkMiss is what traffic that is no Service's pays.
func BenchmarkMiss(b *testing.B) {
	for _, f := range families {
		for _, p := range protocols[:2] {
			b.Run(fmt.Sprintf("%s/%s", f.name, p.name), func(b *testing.B) {
				w := newWorld(b)
				w.addService(1, port(f.vip, 80), p.proto, nil, endpoint{address: port(f.local, 8080), onNode: true})
				w.addAddress(f.vip, maps.AddressClusterIP)
				w.measure(b, w.framed(w.pod, more(p.proto, port(f.pod, 1), port(f.far, 80))).bytes())
			})
		}
	}
}
