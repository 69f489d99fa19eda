// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shunt-lb/shunt/pkg/explain"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// filter chooses Services by namespace and name; the empty string matches all.
type filter struct {
	namespace, name string
}

// filterFlags are the flags and the argument of a listing.
type filterFlags struct {
	namespace, service string
}

func addFilter(cmd *cobra.Command) *filterFlags {
	f := &filterFlags{}
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "only Services of this namespace")
	cmd.Flags().StringVar(&f.service, "service", "", "only this Service: NAMESPACE/NAME, or NAME")
	cmd.Use += " [NAMESPACE/NAME]"
	cmd.Args = cobra.MaximumNArgs(1)
	return f
}

// filter joins the flags and the argument, which means the same as --service.
func (f filterFlags) filter(args []string) (filter, error) {
	service := f.service
	if len(args) == 1 {
		if service != "" && service != args[0] {
			return filter{}, fmt.Errorf("choose Services: both %q and --service %q are given: give one", args[0], service)
		}
		service = args[0]
	}
	namespace, name, qualified := strings.Cut(service, "/")
	if !qualified {
		return filter{namespace: f.namespace, name: service}, nil
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return filter{}, fmt.Errorf("choose Services: %q is not NAMESPACE/NAME", service)
	}
	if f.namespace != "" && f.namespace != namespace {
		return filter{}, fmt.Errorf("choose Services: %q is not in the namespace %q of --namespace: give one", service,
			f.namespace)
	}
	return filter{namespace: namespace, name: name}, nil
}

func (f filter) match(s *explain.Service) bool {
	return (f.namespace == "" || f.namespace == s.Namespace) && (f.name == "" || f.name == s.Name)
}

// names holds the service ports that a filter lets through, by service id.
type names struct {
	byID map[uint32]*explain.Service
	all  bool
}

// readNames reads the names that f lets through. Asking for a Service that is not there is an error.
func readNames(r maps.Reader, f filter) (names, error) {
	n := names{byID: map[uint32]*explain.Service{}, all: f == filter{}}
	for entry, err := range r.ServiceNames() {
		if err != nil {
			return names{}, err
		}
		if s := explain.ServiceOf(entry.Key, entry.Value); f.match(s) {
			n.byID[entry.Key] = s
		}
	}
	if f.name != "" && len(n.byID) == 0 {
		return names{}, fmt.Errorf("find Service %s: none of that name is programmed here: see shunt services", f)
	}
	return n, nil
}

// String returns what the user asked for.
func (f filter) String() string {
	if f.namespace == "" {
		return f.name
	}
	return f.namespace + "/" + f.name
}

// get returns the service port of id. One without a name (being added or removed this moment) is shown by its id, but
// matches no filter.
func (n names) get(id uint32) (*explain.Service, bool) {
	if s, ok := n.byID[id]; ok {
		return s, true
	}
	return &explain.Service{ID: id}, n.all
}

// nameOrID is how a listing names a Service.
func nameOrID(name string, id uint32) string {
	if name == "" {
		return fmt.Sprintf("(service id %d)", id)
	}
	return name
}
