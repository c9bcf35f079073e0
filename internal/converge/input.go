package converge

import (
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
)

// eyes read what plans and steps go by.
type eyes struct {
	cfg   *Config
	began time.Time // when this process began to watch
}

// hostInput reads what a plan on one host's answer needs; false if the host is
// no longer registered.
func (l *eyes) hostInput(tx *state.ReadTx, a answer, in *reconcile.Input) bool {
	in.Observations = map[string]fleet.Observation{a.host: a.obs}
	in.Heard = map[string]uint64{a.host: a.heard}
	in.Revision, in.VMs, in.Paused = tx.Revision(), rowsFor(tx, a), pauses(tx)
	in.Lives = make(map[string]reconcile.Life, len(in.VMs))
	for _, vm := range in.VMs {
		if vm.State == fleet.VMStateRunning {
			in.Lives[vm.UID] = l.life(tx, vm)
		}
	}
	_, registered := tx.Hosts().Get(a.host)
	return registered
}

// rowsFor reads the rows on a host and those whose life it lists.
func rowsFor(tx *state.ReadTx, a answer) []*fleet.VM {
	rows := collect(tx.VMs().ByHost(a.host))
	have := make(map[string]bool, len(rows))
	for _, vm := range rows {
		have[vm.UID] = true
	}
	listed, _ := a.obs.VMs()
	for _, o := range listed {
		if have[o.UID] {
			continue
		}
		if vm, ok := tx.VMs().GetUID(o.UID); ok {
			rows = append(rows, vm)
		}
	}
	return rows
}

// fleetInput reads what a plan on what belongs to no host needs.
func (l *eyes) fleetInput(tx *state.ReadTx, ages eventAges, in *reconcile.Input) {
	in.Fleet = true
	in.Revision, in.Paused = tx.Revision(), pauses(tx)
	for vm := range tx.VMs().ByState(fleet.VMStateDestroying) {
		if vm.HostID == "" {
			in.VMs = append(in.VMs, vm)
		}
	}
	in.Stored = l.stored(tx)
	in.Kept = kept(tx, in.Now)
	in.Kept.OldestEvent, in.Kept.KeepEvents = ages.oldest, l.keepEvents(ages, in.Now)
	in.Kept.OldestDeadLetter, in.Kept.KeepDeadLetters = l.cfg.keepDeadLetters(tx, in.Now)
}

// stored reads what collecting snapshots goes by; nothing without a snapshot.
func (l *eyes) stored(tx *state.ReadTx) reconcile.Stored {
	s := reconcile.Stored{Snapshots: collect(tx.Snapshots().All())}
	if len(s.Snapshots) == 0 {
		return s
	}
	s.Seeds = map[string]bool{}
	for vm := range tx.VMs().All() {
		if vm.Spec.SeedSnapshotID != "" {
			s.Seeds[vm.Spec.SeedSnapshotID] = true
		}
	}
	if l.cfg.Held != nil {
		s.Held = l.cfg.Held()
	}
	if l.cfg.Artifacts != nil {
		s.Uses = l.cfg.Artifacts()
	}
	return s
}

// life is what a row does not say about a running life.
func (l *eyes) life(tx *state.ReadTx, vm *fleet.VM) reconcile.Life {
	task, ok := tx.Tasks().Get(vm.TaskID)
	life := reconcile.Life{Tasked: ok && task.UID == vm.UID && !task.RunStatus.Done()}
	since := l.began
	if l.cfg.Use != nil {
		use := l.cfg.Use(vm.UID)
		if life.Open = use.Open; use.Last.After(since) {
			since = use.Last
		}
	}
	life.Quiet = time.Since(since) // monotonic
	if l.cfg.Hold != nil {
		life.Held = l.cfg.Hold(vm)
	}
	life.Paused = vm.Paused != nil || l.cfg.Paused != nil && l.cfg.Paused(vm.UID)
	return life
}
