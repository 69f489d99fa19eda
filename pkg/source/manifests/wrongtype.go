// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/shunt-lb/shunt/pkg/source"
)

// typeProblem tells which field has a value of the wrong type. The strict decoder's error has neither an index nor a
// type that can be named here, so the standard library's decoder is asked where the same data fails.
func typeProblem(data []byte, v any, err error) source.Problem {
	fresh := reflect.New(reflect.TypeOf(v).Elem()).Interface()
	var wrong *json.UnmarshalTypeError
	if !errors.As(json.Unmarshal(data, fresh), &wrong) {
		return source.Problem{Message: strings.TrimPrefix(err.Error(), "json: ")}
	}
	return source.Problem{
		Field:   pathAt(data, wrong.Offset),
		Message: fmt.Sprintf("want %s, found a JSON %s", word(wrong.Type), wrong.Value),
	}
}

// word says in the user's terms what a Go type takes.
func word(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return word(t.Elem())
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("an integer of %d bits", t.Bits())
	case reflect.Slice, reflect.Array:
		return "a list"
	}
	return "an object"
}

// step is one level of the way into a JSON value.
type step struct {
	list  bool
	index int
	key   string
	// named is true when key is set and its value has not been read.
	named bool
}

// pathAt returns the path of the value that ends at, or contains, the byte at offset: "spec.ports[1].port".
func pathAt(data []byte, offset int64) string {
	var path []step
	stream := json.NewDecoder(bytes.NewReader(data))
	for {
		token, err := stream.Token()
		if err != nil {
			return ""
		}
		path = advance(path, token)
		if stream.InputOffset() >= offset {
			return render(path)
		}
	}
}

// advance moves on by one token.
func advance(path []step, token json.Token) []step {
	delim, isDelim := token.(json.Delim)
	if isDelim && (delim == '}' || delim == ']') {
		return path[:len(path)-1]
	}
	if n := len(path); n > 0 {
		top := &path[n-1]
		switch {
		case top.list:
			top.index++
		case !top.named:
			top.key, top.named = token.(string), true
			return path
		default:
			top.named = false
		}
	}
	if isDelim {
		path = append(path, step{list: delim == '[', index: -1})
	}
	return path
}

func render(path []step) string {
	var b strings.Builder
	for _, s := range path {
		switch {
		case s.list && s.index >= 0:
			fmt.Fprintf(&b, "[%d]", s.index)
		case !s.list && s.key != "":
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s.key)
		}
	}
	return b.String()
}
