// SPDX-License-Identifier: Apache-2.0

package source

import (
	"net/netip"
	"testing"
)

func TestParseAddr(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ what, in, want string }{
		{"a plain address", "10.0.0.1", "10.0.0.1"},
		{"leading zeros are decimal", "010.000.01.001", "10.0.1.1"},
		{"an octet of zeros only", "10.0.000.0", "10.0.0.0"},
		{"upper-case IPv6 is canonicalised", "2001:DB8:0:0::1", "2001:db8::1"},
		{"a v4-mapped address is IPv4", "::ffff:1.2.3.4", "1.2.3.4"},
		{"a v4-mapped address with leading zeros", "::ffff:001.02.3.4", "1.2.3.4"},
		{"a v4-mapped address in hexadecimal", "::ffff:102:304", "1.2.3.4"},
		{"octet too large", "10.0.0.256", ""},
		{"an empty octet", "10..0.1", ""},
		{"too few octets", "10.0.1", ""},
		{"hexadecimal octet", "0x10.0.0.1", ""},
		{"a sign", "10.0.0.+1", ""},
		{"a zone", "fe80::1%eth0", ""},
		{"blanks", " 10.0.0.1", ""},
		{"nothing", "", ""},
		{"a name", "example.org", ""},
		{"a prefix", "10.0.0.0/8", ""},
	} {
		got, err := ParseAddr(row.in)
		if row.want == "" {
			if err == nil {
				t.Errorf("%s: ParseAddr(%q) = %v, want an error", row.what, row.in, got)
			}
			continue
		}
		if err != nil || got != netip.MustParseAddr(row.want) {
			t.Errorf("%s: ParseAddr(%q) = %v, %v, want %s", row.what, row.in, got, err, row.want)
		}
	}
}

func TestParsePrefix(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ what, in, want string }{
		{"a plain prefix", "10.0.0.0/8", "10.0.0.0/8"},
		{"host bits are masked off", "10.1.2.3/8", "10.0.0.0/8"},
		{"leading zeros in address and length", "010.1.02.3/08", "10.0.0.0/8"},
		{"everything", "0.0.0.0/0", "0.0.0.0/0"},
		{"IPv6", "2001:DB8::1/32", "2001:db8::/32"},
		{"a v4-mapped prefix is IPv4", "::ffff:10.1.2.3/104", "10.0.0.0/8"},
		{"a v4-mapped prefix that covers more than IPv4", "::ffff:10.0.0.0/64", ""},
		{"no length", "10.0.0.0", ""},
		{"a length too large for IPv4", "10.0.0.0/33", ""},
		{"a length too large for IPv6", "::1/129", ""},
		{"a negative length", "10.0.0.0/-1", ""},
		{"no address", "/8", ""},
		{"two lengths", "10.0.0.0/8/8", ""},
	} {
		got, err := ParsePrefix(row.in)
		if row.want == "" {
			if err == nil {
				t.Errorf("%s: ParsePrefix(%q) = %v, want an error", row.what, row.in, got)
			}
			continue
		}
		if err != nil || got != netip.MustParsePrefix(row.want) {
			t.Errorf("%s: ParsePrefix(%q) = %v, %v, want %s", row.what, row.in, got, err, row.want)
		}
	}
}

func FuzzParsePrefix(f *testing.F) {
	for _, seed := range []string{"10.0.0.0/8", "::/0", "010.1.02.3/08", "::ffff:10.1.2.3/104", "fe80::1%x/3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePrefix(s)
		if err != nil {
			return
		}
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() || p.Addr().Zone() != "" {
			t.Errorf("ParsePrefix(%q) = %v is not canonical", s, p)
		}
		again, err := ParsePrefix(p.String())
		if err != nil || again != p {
			t.Errorf("ParsePrefix(%q) = %v, %v; it came from %q", p, again, err, s)
		}
	})
}
