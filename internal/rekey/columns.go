package rekey

import (
	"bytes"
	"iter"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// VMColumn covers one sealed field of the environments, which are sealed with
// the uid of their life.
func VMColumn(kind string, field func(*fleet.VM) *[]byte) Column {
	return Column{
		Kind: kind,
		After: func(tx *state.ReadTx, id string) iter.Seq[Value] {
			return func(yield func(Value) bool) {
				for vm := range tx.VMs().After(id) {
					if !yield(Value{Row: vm.ID, Bound: vm.UID, Sealed: *field(vm)}) {
						return
					}
				}
			}
		},
		Swap: func(tx *state.Tx, row string, old, sealed []byte) error {
			vm, ok := tx.VMs().Get(row)
			if !ok || !bytes.Equal(*field(vm), old) {
				return nil
			}
			changed := *vm
			*field(&changed) = sealed
			return tx.PutVM(changed)
		},
	}
}

// HostColumn covers the tokens of the hosts, which are sealed with the host's
// id.
func HostColumn(kind string) Column {
	return Column{
		Kind: kind,
		After: func(tx *state.ReadTx, id string) iter.Seq[Value] {
			return func(yield func(Value) bool) {
				for h := range tx.Hosts().All() {
					if h.ID > id && !yield(Value{Row: h.ID, Bound: h.ID, Sealed: h.TokenSealed}) {
						return
					}
				}
			}
		},
		Swap: func(tx *state.Tx, row string, old, sealed []byte) error {
			h, ok := tx.Hosts().Get(row)
			if !ok || !bytes.Equal(h.TokenSealed, old) {
				return nil
			}
			changed := *h
			changed.TokenSealed = sealed
			return tx.PutHost(changed)
		},
	}
}

// DocumentColumn covers one sealed field of a collection's documents, which
// are sealed with the document's id.
func DocumentColumn[T any](kind string, c state.Collection[T], field func(*T) *[]byte) Column {
	return Column{
		Kind: kind,
		After: func(tx *state.ReadTx, id string) iter.Seq[Value] {
			return func(yield func(Value) bool) {
				for row, doc := range c.After(tx, id) {
					if !yield(Value{Row: row, Bound: row, Sealed: *field(doc)}) {
						return
					}
				}
			}
		},
		Swap: func(tx *state.Tx, row string, old, sealed []byte) error {
			doc, ok := c.Get(tx, row)
			if !ok || !bytes.Equal(*field(doc), old) {
				return nil
			}
			changed := *doc
			*field(&changed) = sealed
			return c.Put(tx, row, &changed)
		},
	}
}
