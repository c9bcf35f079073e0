package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/test/history"
)

// judgement is what the witnesses said, and what is wrong with it.
type judgement struct {
	entries  []entry
	ops      []history.Op
	problems []string
}

func (j *judgement) wrong(promise int, vmID, format string, args ...any) {
	j.problems = append(j.problems, fmt.Sprintf("promise %d: %s\nclients:\n%shosts:\n%s", promise, fmt.Sprintf(format, args...),
		history.Of(j.ops, vmID), about(j.entries, vmID)))
}

// judge holds the promises against what was witnessed, once all is calm again.
func (w *world) judge() {
	j := &judgement{entries: w.wit.hosts.all(), ops: w.wit.clients.Ops()}
	shown := j.shown()
	j.nothingEndsWithoutOrder(shown)
	j.onlyTheNewestLeaderActs()
	j.whatIsGoneIsGone()
	j.nothingRunsTwice()
	w.everythingIsThere(j, shown)
	w.nothingLeaks(j)
	w.everyEndHasAReason(j, shown)
	if w.captures {
		w.snapshotsAreInOrder(j)
	}
	for _, p := range j.problems {
		w.wrong("%s", p)
	}
}

// shown is the first stamp at which a client was told that a life runs.
func (j *judgement) shown() map[string]lifeShown {
	out := map[string]lifeShown{}
	for _, op := range j.ops {
		if op.Outcome != history.Done || op.UID == "" || op.State != "running" && op.State != "draining" {
			continue
		}
		if have, ok := out[op.UID]; !ok || op.Return < have.at {
			out[op.UID] = lifeShown{uid: op.UID, vmID: op.ID, at: op.Return, call: op.Call}
		}
	}
	return out
}

type lifeShown struct {
	uid, vmID string
	call, at  int64
}

// explained is the operation or the deed that may have ended a life before a
// stamp.
func (j *judgement) explained(l lifeShown, before int64) bool {
	for _, op := range j.ops {
		if op.ID == l.vmID && (op.Verb == history.Destroy || op.Verb == history.Complete) && op.Call < before &&
			(op.Outcome == history.Lost || op.Outcome == history.Failed || op.Return > l.call) && op.Outcome != history.Refused && op.Outcome != history.NotFound {
			return true
		}
	}
	for _, op := range j.ops {
		if op.Verb == history.Died && op.ID == l.vmID && (op.UID == "" || op.UID == l.uid) && op.Call < before {
			return true
		}
	}
	for _, e := range j.entries {
		if e.Deed == deedDied && e.UID == l.uid && e.Refused == "" && e.From < before {
			return true
		}
	}
	return false
}

// nothingEndsWithoutOrder is promise 1: a machine that a client was told of is
// ended only after somebody asked for it, or after it had ended by itself.
func (j *judgement) nothingEndsWithoutOrder(shown map[string]lifeShown) {
	for _, e := range j.entries {
		if e.Deed != deedRemove {
			continue
		}
		l, ok := shown[e.UID]
		if ok && !j.explained(l, e.From) {
			j.wrong(1, e.VMID, "%s was removed on %s and nobody had asked for it: %v", e.UID, e.Host, e)
		}
	}
}

// onlyTheNewestLeaderActs is promise 2: once a host has taken the mark of a
// term, it obeys no order of an earlier one, and never one of a copy.
func (j *judgement) onlyTheNewestLeaderActs() {
	type claim struct {
		at   int64
		term int64
	}
	claims := map[string][]claim{}
	for _, e := range j.entries {
		if e.Deed == deedClaim && e.To != 0 && e.Refused == "" {
			claims[e.Host+" "+e.Fleet] = append(claims[e.Host+" "+e.Fleet], claim{e.To, e.Term})
		}
	}
	for _, e := range j.entries {
		if (e.Deed != deedOrder && e.Deed != deedClaim) || e.To == 0 || e.Refused != "" {
			continue
		}
		if strings.HasPrefix(e.Server, roguePrefix) {
			j.wrong(2, e.VMID, "%v was obeyed, and comes from a copy of the database", e)
		}
		for _, c := range claims[e.Host+" "+e.Fleet] {
			if c.term > e.Term && c.at < e.From {
				j.wrong(2, e.VMID, "%v was obeyed after term %d had been claimed at %d", e, c.term, c.at)
				break
			}
		}
	}
}

// whatIsGoneIsGone is the other half of promise 3: when a client is told that an
// environment is gone, no machine is left of those that were there when it asked.
func (j *judgement) whatIsGoneIsGone() {
	for _, op := range j.ops {
		if op.Verb != history.Destroy || op.Outcome != history.Done {
			continue
		}
		there := map[string]bool{}
		for _, e := range j.entries {
			switch {
			case e.VMID != op.ID:
			case e.Deed == deedStarted && e.From < op.Call:
				there[e.UID] = true
			case e.Deed == deedRemove && e.From < op.Return && e.Refused == "":
				there[e.UID] = false // removed, or its agent was killed over it
			}
		}
		for uid, left := range there {
			if left {
				j.wrong(3, op.ID, "%s was there when it was told to be gone: %v", uid, op)
			}
		}
	}
}

// everythingIsThere is promise 3: a life that a client was told of is there,
// on its host too, or its end was asked for; what was told to be gone is gone.
func (w *world) everythingIsThere(j *judgement, shown map[string]lifeShown) {
	listed, held := w.listed(j), map[string]string{}
	for _, h := range w.hosts {
		l, ok := h.holds(w.fleetID())
		if !ok {
			j.wrong(4, "", "host %s does not answer completely after %v of calm: %s", h.id, calm, l.Reason)
			continue
		}
		for _, vm := range l.VMs {
			if vm.Running || vm.Paused {
				held[vm.UID] = h.id
			}
		}
	}
	for uid, l := range shown {
		env, there := listed[uid]
		if !there && !j.explained(l, history.Never) {
			j.wrong(3, l.vmID, "%s was acknowledged at %d and is gone, though nobody asked for that", uid, l.at)
		}
		if there && held[uid] != env.HostID {
			j.wrong(3, l.vmID, "%s is %s and should be on %s, but is on %q", uid, env.State, env.HostID, held[uid])
		}
	}
	for uid, host := range held {
		if _, there := listed[uid]; !there {
			j.wrong(4, "", "%s still has %s, which nobody knows", host, uid)
		}
	}
}

// nothingLeaks is promise 4: in the end hosts hold exactly what the API lists,
// on disk and in what is counted as used.
func (w *world) nothingLeaks(j *judgement) {
	count, cpus := map[string]int{}, map[string]int{}
	for _, env := range w.listed(j) {
		count[env.HostID]++
		if env.Activity != string(fleet.ActivityPaused) {
			cpus[env.HostID] += int(env.Spec.CPUs)
		}
		if env.State != "running" && env.State != "draining" {
			j.wrong(4, env.ID, "%s is still %s after %v of calm", env.UID, env.State, calm)
		}
	}
	u := w.newUser(8)
	for id, h := range w.hosts {
		if dirs, err := h.directories(); err != nil || dirs != count[id] {
			j.wrong(4, "", "%s has %d directories of machines for %d environments, %v", id, dirs, count[id], err)
		}
		info, err := u.api.Host(w.ctx, id)
		if err != nil {
			j.wrong(4, "", "host %s cannot be looked at: %v", id, err)
			continue
		}
		if info.Allocated.VMCount != count[id] || info.Allocated.CPUs != cpus[id] {
			j.wrong(4, "", "%s counts %d environments and %d CPUs as used, it has %d and %d",
				id, info.Allocated.VMCount, info.Allocated.CPUs, count[id], cpus[id])
		}
	}
}

// everyEndHasAReason is promise 5: what ended is still there to read, with
// actor, rule and evidence, and so is the event that said so. This is the
// product's own record, which is what is looked at here.
func (w *world) everyEndHasAReason(j *judgement, shown map[string]lifeShown) {
	loaded, err := w.db.rows.Reopen().Load(w.ctx, memory.MaxEvents)
	if err != nil {
		j.wrong(5, "", "the journal cannot be read: %v", err)
		return
	}
	events := map[uint64]fleet.Event{}
	for i, ev := range loaded.Events {
		if i > 0 && ev.Seq != loaded.Events[i-1].Seq+1 {
			j.wrong(5, "", "event %d comes after event %d", ev.Seq, loaded.Events[i-1].Seq)
		}
		events[ev.Seq] = ev
	}
	ended := map[string]bool{}
	for _, l := range loaded.Lives {
		ended[l.UID] = true
		if r := l.Reason; r.Actor == "" || r.Rule == "" || r.Evidence == "" {
			j.wrong(5, l.VMID, "%s ended without a reason: %+v", l.UID, r)
		}
		if ev := events[l.EndedSeq]; ev.UID != l.UID || !fleet.IsTerminalState(ev.State) || ev.Reason == nil {
			j.wrong(5, l.VMID, "%s ended with event %d, which is %+v", l.UID, l.EndedSeq, ev)
		}
	}
	listed := w.listed(j)
	for uid, l := range shown {
		if _, there := listed[uid]; !there && !ended[uid] {
			j.wrong(5, l.vmID, "%s is gone and nothing tells why", uid)
		}
	}
}

// listed is what the API lists, by uid.
func (w *world) listed(j *judgement) map[string]gen.Environment {
	u, out := w.newUser(7), map[string]gen.Environment{}
	var err error
	for range 30 {
		clear(out)
		for env, e := range u.api.All(w.ctx, gen.ListEnvironmentsParams{}) {
			if err = e; err == nil {
				out[env.UID] = env
			}
		}
		if err == nil {
			return out
		}
		_ = pause(w.ctx, w.ctx, time.Second)
	}
	j.wrong(3, "", "the API does not list after %v of calm: %v", calm, err)
	return out
}

func (w *world) fleetID() string {
	loaded, err := w.db.rows.Reopen().Load(w.ctx, 1)
	if err != nil {
		return ""
	}
	return loaded.FleetID
}

// anyMachine is some running machine of a host, as the agent lists it.
func (w *world) anyMachine(h *host, rnd *rand.Rand) fleet.ObservedVM {
	l, ok := h.holds(w.fleetID())
	if !ok {
		return fleet.ObservedVM{}
	}
	running := slices.DeleteFunc(l.VMs, func(vm fleet.ObservedVM) bool { return !vm.Running })
	if len(running) == 0 {
		return fleet.ObservedVM{}
	}
	return running[rnd.IntN(len(running))]
}

// killMachine ends a machine from within; from then on its environment may go.
func (w *world) killMachine(h *host, rnd *rand.Rand) {
	vm := w.anyMachine(h, rnd)
	if vm.UID == "" {
		return
	}
	op := history.Op{Verb: history.Died, ID: vm.ID, UID: vm.UID, Call: w.wit.clients.Clock.Now(), Return: history.Never, Outcome: history.Done}
	if h.die(vm, "guest_poweroff") {
		w.wit.clients.Add(op)
	}
}

var _ state.Journal = (*conn)(nil)
