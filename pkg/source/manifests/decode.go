// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/shunt-lb/shunt/pkg/source"
)

// Effects of the problems found here.
const (
	effectRefused = "the document is refused, the last good state of the file's objects stays in force"
	effectIgnored = "it is ignored"
)

// decoder turns documents into objects. It holds no state and may be used by several goroutines.
type decoder struct {
	// node is the name of this node: no other Node is of interest.
	node string
}

// outcome is what one document, or one file, decodes to.
type outcome struct {
	objects  []*object
	problems []source.Problem
	// broken is true when something that should have become an object did not.
	broken bool
}

func (o *outcome) refuse(problems ...source.Problem) {
	o.broken = true
	for _, p := range problems {
		p.Reason, p.Effect = source.ReasonInvalidFile, effectRefused
		o.problems = append(o.problems, p)
	}
}

func (o *outcome) add(other outcome) {
	o.objects = append(o.objects, other.objects...)
	o.problems = append(o.problems, other.problems...)
	o.broken = o.broken || other.broken
}

// document decodes one document of the named file.
func (d decoder) document(file string, doc document) outcome {
	var out outcome
	values, err := toJSON(doc)
	if err != nil {
		out.refuse(syntaxProblem(err, doc.line))
	}
	for _, value := range values {
		out.add(d.value(value, ""))
	}
	where := fmt.Sprintf("%s: document %d (line %d)", file, doc.number, doc.line)
	for _, o := range out.objects {
		o.file, o.number, o.line = file, doc.number, doc.line
		o.place(where)
	}
	for i := range out.problems {
		out.problems[i].Where = where
	}
	return out
}

// toJSON returns the JSON values of a document: one of a YAML document, any number of a JSON text. What was read
// before an error is returned with it.
func toJSON(doc document) ([][]byte, error) {
	if text := bytes.TrimSpace(doc.text); len(text) == 0 || text[0] != '{' {
		value, err := yaml.YAMLToJSONStrict(doc.text)
		if err != nil {
			return nil, err
		}
		return [][]byte{value}, nil
	}
	values, err := jsonValues(doc.text)
	if err == nil {
		return values, nil
	}
	// A YAML document in flow style begins with a brace too.
	if value, yamlErr := yaml.YAMLToJSONStrict(doc.text); yamlErr == nil {
		return [][]byte{value}, nil
	}
	return values, err
}

func jsonValues(text []byte) ([][]byte, error) {
	var out [][]byte
	for stream := json.NewDecoder(bytes.NewReader(text)); ; {
		var value json.RawMessage
		switch err := stream.Decode(&value); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return out, fmt.Errorf("JSON: %w at byte %d", err, stream.InputOffset())
		}
		out = append(out, value)
	}
}

var (
	yamlLine      = regexp.MustCompile(`line (\d+)`)
	yamlDuplicate = regexp.MustCompile(`key "([^"]*)" already set in map`)
)

// syntaxProblem tells what is wrong with a text that is neither YAML nor JSON. The parser counts the lines of the
// document; a user looks for those of the file.
func syntaxProblem(err error, firstLine int) source.Problem {
	message := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	message = strings.Join(strings.Fields(message), " ")
	message = yamlLine.ReplaceAllStringFunc(message, func(s string) string {
		n, _ := strconv.Atoi(strings.TrimPrefix(s, "line "))
		return fmt.Sprintf("line %d", n+firstLine-1)
	})
	p := source.Problem{Message: message}
	if m := yamlDuplicate.FindStringSubmatch(message); m != nil {
		p.Field = m[1]
	}
	return p
}

// value decodes one JSON value: an object or a list of them. prefix is the path of the value in its document.
func (d decoder) value(data []byte, prefix string) (out outcome) {
	var head metav1.TypeMeta
	if err := json.Unmarshal(data, &head); err != nil {
		out.refuse(at(prefix, typeProblem(data, &head, err)))
		return out
	}
	if head.Kind == "" || head.APIVersion == "" {
		field := "kind"
		if head.Kind != "" {
			field = "apiVersion"
		}
		out.refuse(source.Problem{Field: prefix + field, Message: "required: every object has an apiVersion and a kind"})
		return out
	}
	if strings.HasSuffix(head.Kind, "List") && prefix == "" {
		return d.list(data, head)
	}
	return d.object(data, head, prefix)
}

// list is a v1 List or the list of one kind, whose items need not repeat their kind.
type list struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ListMeta   `json:"metadata"`
	Items           []json.RawMessage `json:"items"`
}

func (d decoder) list(data []byte, head metav1.TypeMeta) (out outcome) {
	item := metav1.TypeMeta{APIVersion: head.APIVersion, Kind: strings.TrimSuffix(head.Kind, "List")}
	if item.Kind != "" && kinds[item] == nil {
		return unsupported(head, "")
	}
	var l list
	if problems := strict(data, &l); len(problems) > 0 {
		out.refuse(problems...)
		return out
	}
	for i, value := range l.Items {
		prefix := fmt.Sprintf("items[%d].", i)
		var own metav1.TypeMeta
		if item.Kind != "" && json.Unmarshal(value, &own) == nil && own == (metav1.TypeMeta{}) {
			out.add(d.object(value, item, prefix))
			continue
		}
		out.add(d.value(value, prefix))
	}
	return out
}

// object decodes one object of a kind that is of interest.
func (d decoder) object(data []byte, head metav1.TypeMeta, prefix string) (out outcome) {
	read := kinds[head]
	if read == nil {
		return unsupported(head, prefix)
	}
	o, problems := read(d, data)
	if len(problems) > 0 {
		for i := range problems {
			problems[i] = at(prefix, problems[i])
		}
		out.refuse(problems...)
		return out
	}
	out.objects = []*object{o}
	return out
}

func unsupported(head metav1.TypeMeta, prefix string) outcome {
	return outcome{problems: []source.Problem{{
		Field: prefix + "kind", Value: head.APIVersion + " " + head.Kind, Reason: source.ReasonUnsupported,
		Message: "only v1 Service, v1 Node, discovery.k8s.io/v1 EndpointSlice and networking.k8s.io/v1 ServiceCIDR are read",
		Effect:  effectIgnored,
	}}}
}

// at puts the path of a value before the field of a problem in it.
func at(prefix string, p source.Problem) source.Problem {
	if p.Field == "" {
		p.Field = strings.TrimSuffix(prefix, ".")
	} else {
		p.Field = prefix + p.Field
	}
	return p
}

// strict decodes data into v and returns what is wrong: fields that do not exist, are given twice, or have the wrong
// type.
func strict(data []byte, v any) []source.Problem {
	strictErrors, err := kjson.UnmarshalStrict(data, v)
	if err != nil {
		return []source.Problem{typeProblem(data, v, err)}
	}
	var out []source.Problem
	for _, err := range strictErrors {
		p := source.Problem{Message: err.Error()}
		var field kjson.FieldError
		if errors.As(err, &field) {
			p.Field = field.FieldPath()
			p.Message, _, _ = strings.Cut(err.Error(), " \"")
		}
		out = append(out, p)
	}
	return out
}
