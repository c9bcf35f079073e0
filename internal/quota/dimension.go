package quota

import (
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Names of what is counted of environments.
const (
	Environments = "environments"
	CPUs         = "cpus"
	MemoryMB     = "memory_mb"
	DiskGB       = "disk_gb"
	Creates      = "creates" // in flight
)

// Amounts are numbers by dimension.
type Amounts map[string]int64

// Dimension is something that is counted. One of the two functions is set.
type Dimension struct {
	Name string
	Unit string // what people read after the number
	// Of is what one environment counts for.
	Of func(vm *fleet.VM) int64
	// Count is what a scope holds of something that environments do not tell.
	Count func(tx *state.ReadTx, s Scope) int64
}

// environmentDimensions are counted over the rows of environments. One that is
// being destroyed counts until its host has confirmed the end: what exists is
// charged for, not what has a name.
var environmentDimensions = []Dimension{
	{Name: Environments, Unit: "environments", Of: func(*fleet.VM) int64 { return 1 }},
	{Name: CPUs, Unit: "CPUs", Of: func(vm *fleet.VM) int64 { return int64(vm.Spec.CPUs) }},
	{Name: MemoryMB, Unit: "MB of memory", Of: func(vm *fleet.VM) int64 { return int64(vm.Spec.RamMB) }},
	{Name: DiskGB, Unit: "GB of disk", Of: func(vm *fleet.VM) int64 { return int64(vm.Spec.StorageGB) }},
	{Name: Creates, Unit: "creates in flight", Of: func(vm *fleet.VM) int64 {
		if vm.State == fleet.VMStateProvisioning {
			return 1
		}
		return 0
	}},
}

// AskOf is what a new environment of spec asks for.
func AskOf(spec fleet.Spec) Amounts {
	vm := fleet.VM{Spec: spec, State: fleet.VMStateProvisioning}
	ask := Amounts{}
	for _, d := range environmentDimensions {
		ask[d.Name] = d.Of(&vm)
	}
	return ask
}

// Scope is who a limit is for.
type Scope struct {
	Kind string // KindOwner or KindKey
	Name string // of the owner, or the key's id
}

// Kinds of scopes. A key's limits count beside its owner's, not in their place.
const (
	KindOwner = "owner"
	KindKey   = "key"
)

// String is the scope's id, such as owner:alice.
func (s Scope) String() string { return s.Kind + ":" + s.Name }

// people is the scope as messages name it.
func (s Scope) people() string {
	if s.Kind == KindKey {
		return "API key " + s.Name
	}
	return "owner " + s.Name
}

// ParseScope reads a scope's id.
func ParseScope(id string) (Scope, error) {
	kind, name, _ := strings.Cut(id, ":")
	if (kind != KindOwner && kind != KindKey) || !fleet.OwnerRule.MatchString(name) {
		return Scope{}, fleet.Invalid("id", "owner:NAME or key:ID", "take it from the list (fuse quota ls)", "%.120q is not allowed", id)
	}
	return Scope{kind, name}, nil
}

// settingPrefix begins the names of the settings that hold limits.
const settingPrefix = "quota/"

func (s Scope) setting() string { return settingPrefix + s.String() }

func (b *Book) dimension(name string) (*Dimension, bool) {
	i := slices.IndexFunc(b.dimensions, func(d Dimension) bool { return d.Name == name })
	if i < 0 {
		return nil, false
	}
	return &b.dimensions[i], true
}
