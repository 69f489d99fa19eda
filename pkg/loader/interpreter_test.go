// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// interpreter runs a compiled program without a kernel, so that a test can count what it does. An address is the
// number of a region of memory in its upper half and an offset in the lower one.
type interpreter struct {
	t       testing.TB
	spec    *ebpf.CollectionSpec
	code    map[asm.RawInstructionOffset]asm.Instruction
	symbols map[string]asm.RawInstructionOffset
	regions [][]byte
	// maps holds the elements of each map by key; names are the maps by their address.
	maps     map[string]map[string][]byte
	names    map[uint64]string
	constant map[string]uint64

	// lookups counts bpf_map_lookup_elem by map, executed the instructions.
	lookups  map[string]int
	executed int

	// found, if set, may replace what the n-th lookup (from 1) in a map finds, as a concurrent writer could; nil is
	// an absent element. read, if set, is called before each load.
	found func(name string, n int, value []byte) []byte
	read  func(address uint64)
}

func newInterpreter(t testing.TB, spec *ebpf.CollectionSpec, program string) *interpreter {
	t.Helper()
	in := &interpreter{
		t: t, spec: spec, regions: [][]byte{nil}, // address 0 is NULL
		code:     map[asm.RawInstructionOffset]asm.Instruction{},
		symbols:  map[string]asm.RawInstructionOffset{},
		maps:     map[string]map[string][]byte{},
		names:    map[uint64]string{},
		constant: map[string]uint64{},
		lookups:  map[string]int{},
	}
	for it := spec.Programs[program].Instructions.Iterate(); it.Next(); {
		in.code[it.Offset] = *it.Ins
		if name := it.Ins.Symbol(); name != "" {
			in.symbols[name] = it.Offset
		}
	}
	return in
}

// region makes memory accessible and returns its address.
func (in *interpreter) region(memory []byte) uint64 {
	in.regions = append(in.regions, memory)
	return uint64(len(in.regions)-1) << 32
}

func (in *interpreter) at(address uint64) []byte {
	number, offset := address>>32, address&0xffffffff
	if number == 0 || number >= uint64(len(in.regions)) || offset > uint64(len(in.regions[number])) {
		in.t.Fatalf("access to address %#x", address)
	}
	return in.regions[number][offset:]
}

func (in *interpreter) load(address uint64, size asm.Size) uint64 {
	if in.read != nil {
		in.read(address)
	}
	var wide [8]byte
	copy(wide[:size.Sizeof()], in.at(address))
	return binary.LittleEndian.Uint64(wide[:])
}

func (in *interpreter) store(address, value uint64, size asm.Size) {
	var wide [8]byte
	binary.LittleEndian.PutUint64(wide[:], value)
	copy(in.at(address)[:size.Sizeof()], wide[:size.Sizeof()])
}

// run executes from an offset on and returns R0.
func (in *interpreter) run(offset asm.RawInstructionOffset, registers [11]uint64) uint64 {
	registers[asm.RFP] = in.region(make([]byte, 512)) + 512
	r := &registers
	for {
		ins, there := in.code[offset]
		if !there {
			in.t.Fatalf("no instruction at %d", offset)
		}
		in.executed++
		next := offset + 1
		switch class := ins.OpCode.Class(); {
		case ins.OpCode.IsDWordLoad():
			next++
			r[ins.Dst] = in.constantOf(ins)
		case ins.OpCode.JumpOp() == asm.Exit && class.IsJump():
			return r[asm.R0]
		case ins.IsFunctionCall():
			r[asm.R0] = in.run(in.symbols[ins.Reference()], *r)
		case ins.IsBuiltinCall():
			r[asm.R0] = in.call(asm.BuiltinFunc(ins.Constant), *r)
		case class.IsJump():
			if in.jumps(ins, r) {
				next += asm.RawInstructionOffset(int64(ins.Offset))
			}
		case class.IsALU():
			in.compute(ins, r)
		case class == asm.LdXClass:
			r[ins.Dst] = in.load(r[ins.Src]+uint64(int64(ins.Offset)), ins.OpCode.Size())
		case class == asm.StClass:
			in.store(r[ins.Dst]+uint64(int64(ins.Offset)), uint64(ins.Constant), ins.OpCode.Size())
		case class == asm.StXClass && ins.OpCode.Mode() == asm.AtomicMode:
			to := r[ins.Dst] + uint64(int64(ins.Offset))
			in.store(to, in.load(to, ins.OpCode.Size())+r[ins.Src], ins.OpCode.Size())
		case class == asm.StXClass:
			in.store(r[ins.Dst]+uint64(int64(ins.Offset)), r[ins.Src], ins.OpCode.Size())
		default:
			in.t.Fatalf("unknown instruction %v", ins)
		}
		offset = next
	}
}

// constantOf is a 64-bit constant, the address of a map, or one in the value of .rodata.
func (in *interpreter) constantOf(ins asm.Instruction) uint64 {
	name := ins.Reference()
	if name == "" {
		return uint64(ins.Constant)
	}
	if _, made := in.constant[name]; !made {
		memory := []byte(nil)
		if !pinned(name) {
			memory = in.spec.Maps[name].Contents[0].Value.([]byte)
		}
		in.constant[name] = in.region(memory)
		in.names[in.constant[name]] = name
	}
	if pinned(name) {
		return in.constant[name]
	}
	return in.constant[name] + uint64(ins.Constant)>>32
}

func (in *interpreter) operand(ins asm.Instruction, r *[11]uint64) uint64 {
	if ins.OpCode.Source() == asm.RegSource {
		return r[ins.Src]
	}
	return uint64(ins.Constant)
}

func (in *interpreter) compute(ins asm.Instruction, r *[11]uint64) {
	a, b := r[ins.Dst], in.operand(ins, r)
	narrow := ins.OpCode.Class() == asm.ALUClass
	if ins.OpCode.ALUOp() == asm.Swap {
		r[ins.Dst] = swap(a, ins.Constant, ins.OpCode.Endianness() == asm.BE)
		return
	}
	width := uint64(64)
	if narrow {
		a, b, width = a&0xffffffff, b&0xffffffff, 32
	}
	var result uint64
	switch op := ins.OpCode.ALUOp(); op {
	case asm.Mov:
		result = b
	case asm.Add:
		result = a + b
	case asm.Sub:
		result = a - b
	case asm.Mul:
		result = a * b
	case asm.Div:
		result = a / b
	case asm.Mod:
		result = a % b
	case asm.Or:
		result = a | b
	case asm.And:
		result = a & b
	case asm.Xor:
		result = a ^ b
	case asm.LSh:
		result = a << (b % width)
	case asm.RSh:
		result = a >> (b % width)
	case asm.Neg:
		result = -a
	default:
		in.t.Fatalf("unknown operation %v in %v", op, ins)
	}
	if narrow {
		result &= 0xffffffff
	}
	r[ins.Dst] = result
}

// swap is a conversion to big endian on a little-endian machine; to little endian it cuts only.
func swap(a uint64, width int64, big bool) uint64 {
	if big {
		a = bits.ReverseBytes64(a) >> (64 - width)
	}
	return a & (1<<width - 1)
}

func (in *interpreter) jumps(ins asm.Instruction, r *[11]uint64) bool {
	a, b := r[ins.Dst], in.operand(ins, r)
	sa, sb := int64(a), int64(b)
	if ins.OpCode.Class() == asm.Jump32Class {
		a, b = a&0xffffffff, b&0xffffffff
		sa, sb = int64(int32(a)), int64(int32(b))
	}
	switch op := ins.OpCode.JumpOp(); op {
	case asm.Ja:
		return true
	case asm.JEq:
		return a == b
	case asm.JNE:
		return a != b
	case asm.JGT:
		return a > b
	case asm.JGE:
		return a >= b
	case asm.JLT:
		return a < b
	case asm.JLE:
		return a <= b
	case asm.JSet:
		return a&b != 0
	case asm.JSGT:
		return sa > sb
	case asm.JSGE:
		return sa >= sb
	case asm.JSLT:
		return sa < sb
	case asm.JSLE:
		return sa <= sb
	default:
		in.t.Fatalf("unknown jump %v in %v", op, ins)
		return false
	}
}

// call is the kernel's helper functions, as far as these tests need them.
func (in *interpreter) call(helper asm.BuiltinFunc, r [11]uint64) uint64 {
	name := in.names[r[asm.R1]]
	switch helper {
	case asm.FnMapLookupElem:
		in.lookups[name]++
		value := in.maps[name][in.key(name, r[asm.R2])]
		if in.found != nil {
			value = in.found(name, in.lookups[name], value)
		}
		if value == nil {
			return 0
		}
		return in.region(value)
	case asm.FnMapUpdateElem:
		value := in.at(r[asm.R3])[:in.spec.Maps[name].ValueSize]
		in.put(name, in.key(name, r[asm.R2]), append([]byte(nil), value...))
		return 0
	case asm.FnSkStorageGet:
		value, there := in.maps[name]["socket"]
		if !there && r[asm.R4] == 0 {
			return 0
		}
		if !there {
			value = make([]byte, in.spec.Maps[name].ValueSize)
			in.put(name, "socket", value)
		}
		return in.region(value)
	case asm.FnSkStorageDelete:
		delete(in.maps[name], "socket")
		return 0
	case asm.FnGetPrandomU32, asm.FnSkcToMptcpSock:
		return 0
	case asm.FnKtimeGetNs, asm.FnGetNetnsCookie, asm.FnSetRetval:
		return 1
	}
	in.t.Fatalf("unknown helper %v", helper)
	return 0
}

func (in *interpreter) key(name string, address uint64) string {
	return string(in.at(address)[:in.spec.Maps[name].KeySize])
}

func (in *interpreter) put(name, key string, value []byte) {
	if in.maps[name] == nil {
		in.maps[name] = map[string][]byte{}
	}
	in.maps[name][key] = value
}

// element puts a key and a value of the given structures into a map.
func (in *interpreter) element(name string, key, value any) {
	in.t.Helper()
	encode := func(v any) []byte {
		encoded, err := binary.Append(nil, binary.LittleEndian, v)
		if err != nil {
			in.t.Fatal(fmt.Errorf("encode %v: %w", v, err))
		}
		return encoded
	}
	in.put(name, string(encode(key)), encode(value))
}
