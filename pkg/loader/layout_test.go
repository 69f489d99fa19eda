// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/shunt-lb/shunt/pkg/maps"
)

// shared are the structures that C and Go both have, by their name in C.
var shared = map[string]reflect.Type{
	"frontend":       reflect.TypeFor[maps.Frontend](),
	"run":            reflect.TypeFor[maps.Run](),
	"service":        reflect.TypeFor[maps.Service](),
	"backend":        reflect.TypeFor[maps.Backend](),
	"service_name":   reflect.TypeFor[maps.ServiceName](),
	"source_range":   reflect.TypeFor[maps.SourceRange](),
	"affinity_key":   reflect.TypeFor[maps.AffinityKey](),
	"affinity_value": reflect.TypeFor[maps.AffinityValue](),
	"service_stats":  reflect.TypeFor[maps.ServiceStats](),
	"meta":           reflect.TypeFor[maps.Meta](),
	"trace_event":    reflect.TypeFor[maps.TraceEvent](),
	"socket_flow":    reflect.TypeFor[maps.SocketFlow](),
	"settings":       reflect.TypeFor[settings](),
}

func TestSharedStructuresAgreeMemberByMember(t *testing.T) {
	spec, err := loadSock()
	if err != nil {
		t.Fatal(err)
	}
	for name, goType := range shared {
		t.Run(name, func(t *testing.T) {
			var cType *btf.Struct
			if err := spec.Types.TypeByName(name, &cType); err != nil {
				t.Fatal(err)
			}
			if uintptr(cType.Size) != goType.Size() {
				t.Errorf("%d bytes in C, %d in Go", cType.Size, goType.Size())
			}
			if len(cType.Members) != goType.NumField() {
				t.Fatalf("%d members in C, %d in Go", len(cType.Members), goType.NumField())
			}
			for i, member := range cType.Members {
				compareMember(t, member, goType.Field(i))
			}
		})
	}
}

func compareMember(t *testing.T, member btf.Member, field reflect.StructField) {
	t.Helper()
	if want := goName(member.Name); strings.ToLower(field.Name) != want {
		t.Errorf("member %s of C is %s in Go", member.Name, field.Name)
	}
	if uintptr(member.Offset.Bytes()) != field.Offset {
		t.Errorf("%s: at byte %d in C, %d in Go", member.Name, member.Offset.Bytes(), field.Offset)
	}
	size, err := btf.Sizeof(member.Type)
	if err != nil {
		t.Fatal(err)
	}
	if uintptr(size) != field.Type.Size() {
		t.Errorf("%s: %d bytes in C, %d in Go", member.Name, size, field.Type.Size())
	}
}

// goName returns what a member is called in Go, in lower case: padding is blank, and seconds need no unit in the name.
func goName(member string) string {
	if member == "pad" {
		return "_"
	}
	return strings.ReplaceAll(strings.TrimSuffix(member, "_s"), "_", "")
}

// enums are the enumerators of types.h and settings.h that Go has, by their name in C.
var enums = map[string]uint64{
	"SERVICE_KIND_CLUSTER_IP":     uint64(maps.KindClusterIP),
	"SERVICE_KIND_EXTERNAL_IP":    uint64(maps.KindExternalIP),
	"SERVICE_KIND_LOAD_BALANCER":  uint64(maps.KindLoadBalancer),
	"SERVICE_KIND_NODE_PORT":      uint64(maps.KindNodePort),
	"SERVICE_INTERNAL_LOCAL":      uint64(maps.ServiceInternalLocal),
	"SERVICE_EXTERNAL_LOCAL":      uint64(maps.ServiceExternalLocal),
	"SERVICE_INTERNAL_DROP":       uint64(maps.ServiceInternalDrop),
	"SERVICE_EXTERNAL_DROP":       uint64(maps.ServiceExternalDrop),
	"SERVICE_SOURCE_RANGES":       uint64(maps.ServiceSourceRanges),
	"SERVICE_POLICY_LOCAL":        uint64(maps.ServicePolicyLocal),
	"ALGORITHM_RANDOM":            0,
	"BACKEND_CLUSTER":             uint64(maps.BackendCluster),
	"BACKEND_LOCAL":               uint64(maps.BackendLocal),
	"BACKEND_ON_NODE":             uint64(maps.BackendOnNode),
	"ADDRESS_CLUSTER_IP":          uint64(maps.AddressClusterIP),
	"ADDRESS_NODE_PORTS":          uint64(maps.AddressNodePorts),
	"ADDRESS_ON_NODE":             uint64(maps.AddressOnNode),
	"ADDRESS_SERVICE":             uint64(maps.AddressService),
	"EVENT_BIND_CONFLICT":         uint64(maps.EventBindConflict),
	"SETTING_SET_RETVAL":          uint64(settingSetRetval),
	"SETTING_READ_KERNEL":         uint64(settingReadKernel),
	"SETTING_LOOPBACK_NODE_PORTS": uint64(settingLoopbackNodePorts),
	"SETTING_HOST_ONLY":           uint64(settingHostOnly),
	"SETTING_REFUSE_BIND":         uint64(settingRefuseBind),
}

var (
	enumerator = regexp.MustCompile(`(?m)^\t((?:SERVICE|ALGORITHM|BACKEND|ADDRESS|EVENT|SETTING)_\w+) = (\d+)(?: << (\d+))?,`)
	version    = regexp.MustCompile(`(?m)^#define LAYOUT_VERSION (\d+)$`)
)

func TestSharedNumbersAgree(t *testing.T) {
	header := readHeaders(t)
	found := map[string]bool{}
	for _, m := range enumerator.FindAllStringSubmatch(header, -1) {
		value, _ := strconv.ParseUint(m[2], 10, 64)
		shift, _ := strconv.ParseUint("0"+m[3], 10, 64)
		found[m[1]] = true
		if got, known := enums[m[1]]; !known || got != value<<shift {
			t.Errorf("%s is %#x in C, %#x in Go (known: %t)", m[1], value<<shift, got, known)
		}
	}
	for name := range enums {
		if !found[name] {
			t.Errorf("%s is not in C", name)
		}
	}
	if m := version.FindStringSubmatch(header); m == nil || m[1] != strconv.Itoa(maps.LayoutVersion) {
		t.Errorf("LAYOUT_VERSION is %v in C, %d in Go", m, maps.LayoutVersion)
	}
}

func readHeaders(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, name := range []string{"types.h", "settings.h"} {
		content, err := os.ReadFile("../../bpf/" + name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(content)
	}
	return all.String()
}
