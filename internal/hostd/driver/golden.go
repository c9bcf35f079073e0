package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/fusevm/fuse/internal/fleet"
)

// Shape is all that two machines must have in common for one to go on from the
// memory of the other.
type Shape struct {
	Image       string             `json:"image"` // digest
	Machine     fleet.MachineFacts `json:"machine"`
	CommandLine string             `json:"command_line"` // the kernel's
}

// Key names the shape by its content.
func (s Shape) Key() string {
	doc, err := json.Marshal(s)
	if err != nil {
		panic("driver: shape: " + err.Error()) // plain fields always encode
	}
	sum := sha256.Sum256(doc)
	return hex.EncodeToString(sum[:10])
}

// Superseded says whether machines that were asked for as those of s are made as
// now today: another kernel, guest agent or QEMU.
func (s Shape) Superseded(now Shape) bool {
	return s.Image == now.Image && s.Machine.CPUs == now.Machine.CPUs && s.Machine.RamMB == now.Machine.RamMB &&
		s.Machine.PageSize == now.Machine.PageSize && s != now
}

// Shaper is a Snapshotter that can tell what a machine would be made of. ok is
// false for one that cannot go on from another's memory, and StorageGB is the
// least disk that its image needs.
type Shaper interface {
	Shape(ctx context.Context, vm VM) (s Shape, storageGB int, ok bool, err error)
}
