// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shunt-lb/shunt/pkg/model"
	"github.com/shunt-lb/shunt/pkg/source"
)

const webService = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  ports: [{port: 80, targetPort: http}]
`

const webSlice = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: shop
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.5]}]
`

// decode decodes a whole file.
func decode(text string) outcome {
	var out outcome
	for _, d := range split([]byte(text)) {
		out.add(decoder{node: "n1"}.document("a.yaml", d))
	}
	return out
}

func ids(objects []*object) []string {
	var out []string
	for _, o := range objects {
		out = append(out, o.id.String())
	}
	return out
}

func TestAServiceAndItsSliceAreDecoded(t *testing.T) {
	t.Parallel()
	out := decode(webService + "---\n" + webSlice)
	if len(out.objects) != 2 || len(out.problems) != 0 || out.broken {
		t.Fatalf("decoded %v, problems %v", ids(out.objects), out.problems)
	}
	wantService := source.SetService{Service: &model.Service{
		ServiceName: model.ServiceName{Namespace: "shop", Name: "web"},
		ClusterIPs:  []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:       []model.Port{{Protocol: model.TCP, Port: 80}},
	}}
	if got := out.objects[0].event; !reflect.DeepEqual(got, wantService) {
		t.Errorf("service\n got %+v\nwant %+v", got, wantService)
	}
	wantSlice := source.SetSlice{Slice: &model.EndpointSlice{
		SliceName: model.SliceName{Namespace: "shop", Name: "web-1"},
		Service:   model.ServiceName{Namespace: "shop", Name: "web"},
		Family:    model.IPv4,
		Ports:     []model.SlicePort{{Protocol: model.TCP, Port: 8080}},
		Endpoints: []model.Endpoint{{Address: netip.MustParseAddr("10.244.1.5"), Ready: true, Serving: true}},
	}}
	if got := out.objects[1].event; !reflect.DeepEqual(got, wantSlice) {
		t.Errorf("slice\n got %+v\nwant %+v", got, wantSlice)
	}
	if got := out.objects[1].where(); got != "a.yaml: document 2 (line 7)" {
		t.Errorf("the slice is at %q", got)
	}
}

func TestWhatIsRead(t *testing.T) {
	t.Parallel()
	service := func(name string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q},`+
			`"spec":{"clusterIP":"10.96.0.1","ports":[{"port":80}]}}`, name)
	}
	for _, row := range []struct {
		what, text string
		want       []string
	}{
		{"JSON", service("a"), []string{"Service default/a"}},
		{"JSON values one after the other", service("a") + "\n" + service("b"), []string{"Service default/a", "Service default/b"}},
		{"YAML in flow style", "{apiVersion: v1, kind: Node, metadata: {name: n1}}", []string{"Node n1"}},
		{"a v1 List of several kinds",
			"apiVersion: v1\nkind: List\nmetadata: {resourceVersion: \"\"}\nitems:\n- " + service("a") +
				"\n- {apiVersion: v1, kind: Node, metadata: {name: n1}}\n",
			[]string{"Service default/a", "Node n1"}},
		{"a list of one kind whose items do not repeat it",
			"apiVersion: v1\nkind: ServiceList\nitems:\n- metadata: {name: a}\n  spec: {clusterIP: None}\n",
			[]string{"Service default/a"}},
		{"an EndpointSliceList whose items repeat it",
			`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSliceList","items":[{"apiVersion":"discovery.k8s.io/v1",` +
				`"kind":"EndpointSlice","metadata":{"name":"s"},"addressType":"IPv4","endpoints":[],"ports":[]}]}`,
			[]string{"EndpointSlice default/s"}},
		{"a ServiceCIDR",
			"apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/12]}\n",
			[]string{"ServiceCIDR kubernetes"}},
		{"an empty list", "apiVersion: v1\nkind: List\nitems: []\n", nil},
		{"comments only", "# nothing\n---\n\n# here\n", nil},
		{"a byte order mark and carriage returns",
			"\xef\xbb\xbf" + strings.ReplaceAll(webService+"---\n"+webSlice, "\n", "\r\n"),
			[]string{"Service shop/web", "EndpointSlice shop/web-1"}},
	} {
		out := decode(row.text)
		if got := ids(out.objects); !slices.Equal(got, row.want) || out.broken {
			t.Errorf("%s: decoded %v, problems %v, want %v", row.what, got, out.problems, row.want)
		}
	}
}

// bad is one way of spoiling a good manifest.
type bad struct {
	what, base, old, new string
	// field is the one that is to be reported, message a part of what is said about it.
	field, message string
}

func (b bad) text(t *testing.T) string {
	t.Helper()
	out := strings.Replace(b.base, b.old, b.new, 1)
	if out == b.base {
		t.Fatalf("%s: the manifest does not contain %q", b.what, b.old)
	}
	return out
}

func TestWhatTheAPIServerRefusesIsRefusedWithItsField(t *testing.T) {
	t.Parallel()
	rows := []bad{
		{"an unknown field", webService, "clusterIP:", "clusterIp:", "spec.clusterIp", "unknown field"},
		{"an unknown field in a list", webService, "targetPort", "targetport", "spec.ports[0].targetport", "unknown field"},
		{"a key given twice", webService, "spec:", "kind: Service\nspec:", "kind", "line 4: key \"kind\" already set"},
		{"a string for a number", webService, "port: 80", `port: "80"`, "spec.ports[0].port", "want an integer of 32 bits, found a JSON string"},
		{"a number for a string", webService, "name: web", "name: 7", "metadata.name", "want a string, found a JSON number"},
		{"an object for a list", webService, "[{port: 80, targetPort: http}]", "{port: 80}", "spec.ports", "want a list"},
		{"a number too large", webService, "port: 80", "port: 8000000000", "spec.ports[0].port", "want an integer of 32 bits"},
		{"port 0", webService, "port: 80", "port: 0", "spec.ports[0].port", "from 1 to 65535"},
		{"port 70000", webService, "port: 80", "port: 70000", "spec.ports[0].port", "from 1 to 65535"},
		{"node port 70000", webService, "port: 80", "port: 80, nodePort: 70000", "spec.ports[0].nodePort", "from 1 to 65535"},
		{"target port 70000", webService, "targetPort: http", "targetPort: 70000", "spec.ports[0].targetPort", "from 1 to 65535"},
		{"an unknown protocol", webService, "port: 80", "port: 80, protocol: ICMP", "spec.ports[0].protocol", "TCP, UDP or SCTP"},
		{"no ports", webService, "[{port: 80, targetPort: http}]", "[]", "spec.ports", "at least one port"},
		{"two ports without names", webService, "}]", "}, {port: 81}]", "spec.ports[0].name", "required"},
		{"two ports of one name", webService, "port: 80, targetPort: http}", "port: 80, name: a}, {port: 81, name: a, protocol: UDP}",
			"spec.ports[1].name", "same name"},
		{"two ports of one number", webService, "port: 80, targetPort: http}", "port: 80, name: a}, {port: 80, name: b}",
			"spec.ports[1].port", "same number and protocol"},
		{"two ports of one node port", webService, "port: 80, targetPort: http}",
			"port: 80, name: a, nodePort: 30000}, {port: 81, name: b, nodePort: 30000}", "spec.ports[1].nodePort", "same node port"},
		{"an invalid ClusterIP", webService, "10.96.0.10", "10.96.0.256", "spec.clusterIP", "not an IP address"},
		{"an invalid second ClusterIP", webService, "clusterIP: 10.96.0.10", "clusterIPs: [10.96.0.10, x]", "spec.clusterIPs[1]", "not an IP address"},
		{"a loopback ClusterIP", webService, "10.96.0.10", "127.0.0.1", "spec.clusterIPs[0]", "loopback"},
		{"ClusterIPs that disagree", webService, "clusterIP:", "clusterIPs: [10.96.0.11]\n  clusterIP:", "spec.clusterIPs[0]", "the same as spec.clusterIP"},
		{"a family unlike the address", webService, "clusterIP:", "ipFamilies: [IPv6]\n  clusterIP:", "spec.clusterIPs[0]", "spec.ipFamilies[0] says IPv6"},
		{"an unknown family", webService, "clusterIP:", "ipFamilies: [IPv5]\n  clusterIP:", "spec.ipFamilies[0]", "IPv4, IPv6"},
		{"two ClusterIPs of one family", webService, "clusterIP: 10.96.0.10", "clusterIPs: [10.96.0.10, 10.96.0.11]", "spec.ipFamilies[1]", "twice"},
		{"an invalid external address", webService, "clusterIP:", "externalIPs: [192.0.2.300]\n  clusterIP:", "spec.externalIPs[0]", "not an IP address"},
		{"an invalid ingress address", webService, "spec:", "status: {loadBalancer: {ingress: [{ip: x}]}}\nspec:", "status.loadBalancer.ingress[0].ip", "not an IP address"},
		{"an unknown ingress mode", webService, "spec:", "status: {loadBalancer: {ingress: [{ip: 192.0.2.1, ipMode: DSR}]}}\nspec:", "status.loadBalancer.ingress[0].ipMode", "VIP, Proxy"},
		{"an unknown type", webService, "clusterIP:", "type: Cluster\n  clusterIP:", "spec.type", "ClusterIP, NodePort"},
		{"an unknown affinity", webService, "clusterIP:", "sessionAffinity: Client\n  clusterIP:", "spec.sessionAffinity", "None, ClientIP"},
		{"an affinity of two days", webService, "clusterIP:",
			"sessionAffinity: ClientIP\n  sessionAffinityConfig: {clientIP: {timeoutSeconds: 172800}}\n  clusterIP:",
			"spec.sessionAffinityConfig.clientIP.timeoutSeconds", "1 to 86400"},
		{"an unknown policy", webService, "clusterIP:", "internalTrafficPolicy: local\n  clusterIP:", "spec.internalTrafficPolicy", "Cluster, Local"},
		{"an invalid name", webService, "name: web", "name: Web_1", "metadata.name", "RFC 1123"},
		{"no name", webService, "name: web, ", "", "metadata.name", "required"},
		{"an invalid namespace", webService, "namespace: shop", "namespace: a/b", "metadata.namespace", "RFC 1123"},
		{"an invalid label", webSlice, "kubernetes.io/service-name: web", "kubernetes.io/service-name: web/x",
			"metadata.labels[kubernetes.io/service-name]", "label"},
		{"no kind", webService, "kind: Service\n", "", "kind", "required"},
		{"no apiVersion", webService, "apiVersion: v1\n", "", "apiVersion", "required"},
		{"an unknown address type", webSlice, "IPv4", "ipv4", "addressType", "IPv4, IPv6, FQDN"},
		{"an invalid endpoint", webSlice, "10.244.1.5", "10.244.1", "endpoints[0].addresses[0]", "not an IP address"},
		{"an endpoint of the other family", webSlice, "10.244.1.5", `"fd00::1"`, "endpoints[0].addresses[0]", "addressType IPv4"},
		{"a second address of the other family", webSlice, "10.244.1.5", `10.244.1.5, "fd00::1"`, "endpoints[0].addresses[1]", "addressType IPv4"},
		{"a loopback endpoint", webSlice, "10.244.1.5", "127.0.0.1", "endpoints[0].addresses[0]", "loopback"},
		{"an endpoint without address", webSlice, "[10.244.1.5]", "[]", "endpoints[0].addresses", "1 to 100 addresses"},
		{"slice port 0", webSlice, "port: 8080", "port: 0", "ports[0].port", "from 1 to 65535"},
		{"slice port 70000", webSlice, "port: 8080", "port: 70000", "ports[0].port", "from 1 to 65535"},
		{"two slice ports of one name", webSlice, "{port: 8080}", "{port: 8080}, {port: 8081}", "ports[1].name", "same name"},
		{"an invalid node name", webSlice, "addresses:", "nodeName: N_1, addresses:", "endpoints[0].nodeName", "RFC 1123"},
		{"a range that is none", "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: c}\nspec: {cidrs: [10.96.0.0/12]}\n",
			"/12", "/33", "spec.cidrs[0]", "not a CIDR"},
		{"a Node in a namespace", "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n", "name: n1", "name: n1, namespace: a", "metadata.namespace", "no namespace"},
		{"in the second item of a list",
			"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Node, metadata: {name: n1}}, {apiVersion: v1, kind: Node, metadata: {name: n2}}]\n",
			"name: n2", "nam: n2", "items[1].metadata.nam", "unknown field"},
	}
	for _, row := range rows {
		out := decode(row.text(t))
		if !out.broken {
			t.Errorf("%s: it is not refused: %v", row.what, out.problems)
			continue
		}
		found := slices.ContainsFunc(out.problems, func(p source.Problem) bool {
			return p.Field == row.field && strings.Contains(p.Message, row.message) &&
				p.Reason == source.ReasonInvalidFile && strings.HasPrefix(p.Where, "a.yaml: document 1 (line 1)")
		})
		if !found {
			t.Errorf("%s: problems %v, want field %s, message %q", row.what, out.problems, row.field, row.message)
		}
	}
}

func TestABadDocumentIsNamedByNumberAndLine(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ what, text, want string }{
		{"broken YAML counts the lines of the file", webService + "---\n# comment\n---\na: [\n---\n" + webSlice,
			"a.yaml: document 2 (line 9): yaml: line 10: did not find expected node content"},
		{"broken JSON", `{"apiVersion": "v1"`, "a.yaml: document 1 (line 1): JSON: unexpected EOF"},
		{"a document that is no object", "- 1\n- 2\n", "a.yaml: document 1 (line 1): want an object, found a JSON array"},
		{"a word", "hello\n", "a.yaml: document 1 (line 1): want an object, found a JSON string"},
		{"a field of a named object", strings.Replace(webService, "port: 80", "port: 0", 1),
			`a.yaml: document 1 (line 1): Service shop/web: spec.ports[0].port "0": a port is a number from 1 to 65535; ` + effectRefused},
	} {
		out := decode(row.text)
		if len(out.problems) != 1 || !strings.HasPrefix(out.problems[0].String(), row.want) {
			t.Errorf("%s: problems %v, want %q", row.what, out.problems, row.want)
		}
	}
}

func TestABadDocumentLeavesTheOthersOfItsFile(t *testing.T) {
	t.Parallel()
	for _, broken := range []string{"a: [", "kind: Service", strings.Replace(webService, "port: 80", "port: 0", 1)} {
		out := decode(webService + "---\n" + broken + "\n---\n" + webSlice)
		if got, want := ids(out.objects), []string{"Service shop/web", "EndpointSlice shop/web-1"}; !slices.Equal(got, want) {
			t.Errorf("with %q in the middle: decoded %v, want %v", broken, got, want)
		}
	}
	item := `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`
	out := decode(`{"apiVersion":"v1","kind":"List","items":[{"kind":1},` + item + `,7]}`)
	if got := ids(out.objects); !slices.Equal(got, []string{"Node n1"}) || len(out.problems) != 2 {
		t.Errorf("a list with bad items: decoded %v, problems %v", got, out.problems)
	}
}

func TestOtherKindsAreReportedAndIgnored(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"apps/v1 Deployment", "discovery.k8s.io/v1beta1 EndpointSlice", "v1 Endpoints", "v1 PodList"} {
		version, name, _ := strings.Cut(kind, " ")
		out := decode("apiVersion: " + version + "\nkind: " + name + "\nspec: {anything: 1}\nitems: []\n---\n" + webService)
		if len(out.objects) != 1 || out.broken || len(out.problems) != 1 {
			t.Errorf("%s: decoded %v, broken %v, problems %v", kind, ids(out.objects), out.broken, out.problems)
			continue
		}
		if p := out.problems[0]; p.Reason != source.ReasonUnsupported || p.Value != kind {
			t.Errorf("%s: problem %+v", kind, p)
		}
	}
}

func TestProblemsThatRefuseNothing(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ what, text, field string }{
		{"no ClusterIP has been allocated, and nobody will",
			strings.Replace(webService, "  clusterIP: 10.96.0.10\n", "", 1), "spec.clusterIP"},
		{"a slice without an owner", strings.Replace(webSlice, "kubernetes.io/service-name", "app", 1),
			"metadata.labels[kubernetes.io/service-name]"},
		{"a slice of host names", strings.NewReplacer("IPv4", "FQDN", "10.244.1.5", "a.example.org").Replace(webSlice), "addressType"},
		{"a source range that is none",
			strings.Replace(webService, "spec:", "spec:\n  loadBalancerSourceRanges: [10.0.0.0/33]", 1), "spec.loadBalancerSourceRanges[0]"},
	} {
		out := decode(row.text)
		if len(out.objects) != 1 || out.broken {
			t.Errorf("%s: decoded %v, problems %v", row.what, ids(out.objects), out.problems)
			continue
		}
		problems := eventProblems(out.objects[0].event)
		if len(problems) != 1 || problems[0].Field != row.field || problems[0].Where != "a.yaml: document 1 (line 1)" {
			t.Errorf("%s: problems %v, want field %s", row.what, problems, row.field)
		}
	}
}

// eventProblems returns the problems that travel with an event.
func eventProblems(e source.Event) []source.Problem {
	return reflect.ValueOf(e).FieldByName("Problems").Interface().([]source.Problem)
}

func TestOnlyThisNodeIsDelivered(t *testing.T) {
	t.Parallel()
	out := decode("{apiVersion: v1, kind: Node, metadata: {name: n1}}\n---\n{apiVersion: v1, kind: Node, metadata: {name: n2}}\n")
	if len(out.objects) != 2 {
		t.Fatalf("decoded %v, problems %v", ids(out.objects), out.problems)
	}
	if _, ok := out.objects[0].event.(source.SetNode); !ok || out.objects[1].event != nil {
		t.Errorf("events %v and %v, want this node's only", out.objects[0].event, out.objects[1].event)
	}
}

func TestAMinimalDualStackServiceIsUnderstood(t *testing.T) {
	t.Parallel()
	out := decode(strings.Replace(webService, "clusterIP: 10.96.0.10", `clusterIPs: ["FD00::10", 010.96.0.10]`, 1))
	if len(out.objects) != 1 {
		t.Fatalf("problems %v", out.problems)
	}
	want := []netip.Addr{netip.MustParseAddr("fd00::10"), netip.MustParseAddr("10.96.0.10")}
	if got := out.objects[0].event.(source.SetService).Service.ClusterIPs; !slices.Equal(got, want) {
		t.Errorf("ClusterIPs %v, want %v", got, want)
	}
}

// FuzzDecode feeds any text: no panic, every document becomes objects or a problem, and the outcome is always the same.
func FuzzDecode(f *testing.F) {
	f.Add(webService + "---\n" + webSlice)
	f.Add(`{"apiVersion":"v1","kind":"List","items":[{"kind":1},{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}},7]}`)
	f.Add("apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: c}\nspec: {cidrs: [10.96.0.0/12]}\n")
	f.Add("a: [\n--- # x\n...\n{}{}\n---\n? {a: b}\n: c\n")
	f.Add("apiVersion: v1\nkind: ServiceList\nitems:\n- metadata: {name: a}\n  spec: {clusterIP: None}\n")
	f.Fuzz(func(t *testing.T, text string) {
		out, again := decode(text), decode(text)
		if !reflect.DeepEqual(out, again) {
			t.Errorf("decoding twice differs:\n%+v\n%+v", out, again)
		}
		if out.broken && len(out.problems) == 0 {
			t.Error("broken without a problem")
		}
		for _, p := range out.problems {
			if p.Message == "" || p.Reason == "" || !strings.HasPrefix(p.Where, "a.yaml: document ") {
				t.Errorf("a problem that tells too little: %+v", p)
			}
		}
		for _, o := range out.objects {
			checkObject(t, o)
		}
	})
}

// checkObject checks what the model relies on.
func checkObject(t *testing.T, o *object) {
	t.Helper()
	if o.id.Name == "" {
		t.Errorf("an object without a name: %+v", o)
	}
	switch e := o.event.(type) {
	case source.SetService:
		s := e.Service
		if len(s.ClusterIPs) == 0 || len(s.Ports) == 0 {
			t.Errorf("a Service that cannot be dialled: %+v", s)
		}
		for _, a := range slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs) {
			if !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsUnspecified() {
				t.Errorf("address %v of %+v", a, s)
			}
		}
	case source.SetSlice:
		for _, end := range e.Slice.Endpoints {
			if model.FamilyOf(end.Address) != e.Slice.Family || end.Address.Is4In6() {
				t.Errorf("endpoint %v of %+v", end.Address, e.Slice)
			}
		}
	}
}
