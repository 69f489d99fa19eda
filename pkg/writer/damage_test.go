// SPDX-License-Identifier: Apache-2.0

package writer

import (
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/maps"
)

// damage is what something else than a Writer could do to the maps of two Services.
type damage struct {
	name string
	do   func(f *maps.Fake)
}

func damages() []damage {
	key := func(i int) maps.Frontend { return frontendKey(simple(i)[0].Frontends[0].FrontendKey) }
	change := func(f *maps.Fake, i int, edit func(*maps.Service)) {
		s, _, _ := f.Service(key(i))
		edit(&s)
		f.PutServices([]maps.Frontend{key(i)}, []maps.Service{s})
	}
	return []damage{
		{"a wrong check", func(f *maps.Fake) { change(f, 1, func(s *maps.Service) { s.FrontendCheck++ }) }},
		{"unknown flags", func(f *maps.Fake) { change(f, 1, func(s *maps.Service) { s.Flags |= 1 << 30 }) }},
		{"another one's run", func(f *maps.Fake) {
			other, _, _ := f.Service(key(2))
			change(f, 1, func(s *maps.Service) { s.Internal = other.Internal })
		}},
		{"a run beyond the end", func(f *maps.Fake) {
			change(f, 1, func(s *maps.Service) { s.External = maps.Run{Base: 65535, Count: 2} })
		}},
		{"a run of all the cells there can be", func(f *maps.Fake) {
			change(f, 1, func(s *maps.Service) { s.External = maps.Run{Base: 1, Count: ^uint32(0)} })
		}},
		{"an unknown service id", func(f *maps.Fake) { change(f, 1, func(s *maps.Service) { s.ServiceID = 99 }) }},
		{"a frontend that nobody wants", func(f *maps.Fake) {
			f.PutServices([]maps.Frontend{{Port: 1}}, []maps.Service{{ServiceID: 98, Internal: maps.Run{Base: 7, Count: 3}}})
		}},
		{"two backends in one place", func(f *maps.Fake) {
			b, _, _ := f.Backend(1)
			b.BackendID = 77
			f.PutBackends([]maps.Backend{b})
		}},
		{"a backend of no service", func(f *maps.Fake) {
			f.PutBackends([]maps.Backend{{BackendID: 9, ServiceID: 97, Flags: maps.BackendCluster}})
		}},
		{"a backend of another protocol", func(f *maps.Fake) {
			b, _, _ := f.Backend(1)
			b.Protocol++
			f.PutBackends([]maps.Backend{b})
		}},
		{"a backend with unknown flags", func(f *maps.Fake) {
			b, _, _ := f.Backend(1)
			b.Flags |= 1 << 9
			f.PutBackends([]maps.Backend{b})
		}},
		{"a backend that is missing", func(f *maps.Fake) { f.DeleteBackends([]uint32{1}) }},
		{"a cell of another backend", func(f *maps.Fake) { f.PutSlots(0, []uint32{3}) }},
		{"a name twice", func(f *maps.Fake) {
			n, _, _ := f.ServiceName(1)
			f.PutServiceNames([]uint32{55}, []maps.ServiceName{n})
		}},
		{"a name that is missing", func(f *maps.Fake) { f.DeleteServiceNames([]uint32{1}) }},
		{"a name with another behind it", func(f *maps.Fake) {
			n, _, _ := f.ServiceName(1)
			n.Name[60] = 'x'
			f.PutServiceNames([]uint32{1}, []maps.ServiceName{n})
		}},
		{"a name without id", func(f *maps.Fake) { f.PutServiceNames([]uint32{0}, []maps.ServiceName{{Protocol: 6}}) }},
		{"a source range of no service", func(f *maps.Fake) {
			f.PutSourceRanges([]maps.SourceRange{{PrefixBits: 96, ServiceID: 96}})
		}},
		{"an address without flags", func(f *maps.Fake) {
			f.PutAddresses([]maps.Address{key(1).Address, {}}, []maps.AddressFlags{0, maps.AddressService})
		}},
		{"an address with unknown flags", func(f *maps.Fake) {
			f.PutAddresses([]maps.Address{key(1).Address, {9: 9}}, []maps.AddressFlags{1 | 1<<9, 1 << 9})
		}},
		{"an address that is missing", func(f *maps.Fake) { f.DeleteAddresses([]maps.Address{key(1).Address}) }},
		{"no mark", func(f *maps.Fake) { f.PutMeta(maps.Meta{LayoutVersion: maps.LayoutVersion}) }},
	}
}

// damaged programs two Services and does the damage.
func damaged(t *testing.T, d damage) (*checker, *Writer) {
	c := newChecker(t, nil)
	w := c.fresh()
	c.write(w, desired{}, services(simple(1, 1, 2), simple(2, 1, 2)))
	// What is wrong is wrong until it is repaired: the invariants hold again at the end.
	c.fake.After(nil)
	c.fake.Before(nil)
	d.do(c.fake)
	return c, w
}

// repaired writes what is desired, which ends the damage.
func (c *checker) repaired(w *Writer) {
	c.t.Helper()
	to := services(simple(1, 1, 2), simple(2, 1, 2), simple(3, 1))
	if err := w.Write(changes(desired{}, to)).Err(); err != nil {
		c.t.Fatal(err)
	}
	c.prune(w, to)
	c.settle(w)
	c.exactly(w, to, nil)
	c.mirrored(w)
	c.after(maps.Operation{})
}

func TestDamageIsRepairedByTheNextProcess(t *testing.T) {
	t.Parallel()
	for _, d := range damages() {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			c, _ := damaged(t, d)
			c.repaired(c.restart())
		})
	}
}

func TestDamageIsFoundByTheAuditAndRepaired(t *testing.T) {
	t.Parallel()
	for _, d := range damages() {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			c, w := damaged(t, d)
			found := ""
			for range audits {
				difference, err := w.Audit(c.fake)
				if err != nil {
					t.Fatal(err)
				}
				if difference != "" {
					found = difference
					break
				}
			}
			if !strings.HasPrefix(found, "map ") {
				t.Fatalf("the audit found %q", found)
			}
			c.repaired(w)
		})
	}
}
