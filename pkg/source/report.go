// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"net/netip"
	"strconv"
	"unique"
)

// report collects what is wrong with one object.
type report struct {
	object   Object
	problems []Problem
}

// invalid reports that the field is left out because of its value.
func (r *report) invalid(field, value string, cause error) {
	r.problems = append(r.problems, Problem{Object: r.object, Field: field, Value: value, Reason: ReasonInvalidField,
		Message: cause.Error(), Effect: "it is left out"})
}

// notTranslated reports why the whole object is left alone.
func (r *report) notTranslated(field, value, message, effect string) {
	r.problems = append(r.problems, Problem{Object: r.object, Field: field, Value: value, Reason: ReasonNotTranslated,
		Message: message, Effect: effect})
}

// addr parses the address in a field; what does not parse or does not pass check is reported.
func (r *report) addr(field, value string, check func(netip.Addr) error) (netip.Addr, bool) {
	a, err := ParseAddr(value)
	if err == nil {
		err = check(a)
	}
	if err != nil {
		r.invalid(field, value, err)
		return netip.Addr{}, false
	}
	return a, true
}

// port checks a port number.
func (r *report) port(field string, value int32) (uint16, bool) {
	if value < 1 || value > 65535 {
		r.invalid(field, strconv.Itoa(int(value)), fmt.Errorf("a port is a number from 1 to 65535"))
		return 0, false
	}
	return uint16(value), true
}

// intern returns one copy of a string that many objects share: node names, zones, namespaces, port names. With fifty
// thousand endpoints the copies would be the larger part of them.
func intern(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}
