package decide

import (
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/playguard/model"
)

// Op is an operation on a host: one of the types below. Destroy and Reclaim
// alone have a field, so no other operation can say anything about volumes.
type Op interface{ op() }

type (
	// Up runs the current compose file again: plain, never forced, which also
	// heals what a cut recreate left.
	Up struct{}
	// Stop stops the containers.
	Stop struct{}
	// Down removes the containers; volumes stay.
	Down struct{}
	// Files writes directory, marker and compose file.
	Files struct{}
	// Destroy removes the containers, these volumes and the directory.
	Destroy struct{ Volumes []string }
	// Sweep removes the containers of an orphan and sets its directory aside.
	Sweep struct{}
	// Restore brings such a directory back.
	Restore struct{}
	// Purge removes it.
	Purge struct{}
)

func (Up) op()      {}
func (Stop) op()    {}
func (Down) op()    {}
func (Files) op()   {}
func (Destroy) op() {}
func (Sweep) op()   {}
func (Restore) op() {}
func (Purge) op()   {}

// Verb is what the runner on the host is asked for. Only VerbOf makes one.
type Verb struct {
	kind    model.OpKind
	volumes []string
}

// VerbOf maps an operation to its verb.
func VerbOf(op Op) Verb {
	switch op := op.(type) {
	case Up:
		return Verb{kind: model.OpUp}
	case Stop:
		return Verb{kind: model.OpStop}
	case Down:
		return Verb{kind: model.OpDown}
	case Files:
		return Verb{kind: model.OpFiles}
	case Branch:
		return Verb{kind: model.OpBranch}
	case Pull:
		return Verb{kind: model.OpPull}
	case Auth:
		return Verb{kind: model.OpAuth}
	case Mark:
		return Verb{kind: model.OpMark}
	case Destroy:
		return Verb{kind: model.OpDestroy, volumes: slices.Clone(op.Volumes)}
	case Reclaim:
		return Verb{kind: model.OpReclaim, volumes: slices.Clone(op.Volumes)}
	case Sweep:
		return Verb{kind: model.OpSweep}
	case Restore:
		return Verb{kind: model.OpRestore}
	case Purge:
		return Verb{kind: model.OpPurge}
	}
	panic("decide: no verb for a nil operation")
}

// Kind returns the verb's name.
func (v Verb) Kind() model.OpKind { return v.kind }

// Volumes lists the volumes to remove, by name. No verb removes volumes that
// it does not name.
func (v Verb) Volumes() []string { return slices.Clone(v.volumes) }

func (v Verb) String() string {
	if len(v.volumes) == 0 {
		return string(v.kind)
	}
	return string(v.kind) + " with " + strings.Join(v.volumes, ", ")
}
