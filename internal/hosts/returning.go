package hosts

import (
	"fmt"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/state/settings"
)

const (
	ruleReturned = "host_returned"
	ruleRebooted = "host_rebooted"
	// maxCompared bounds the complete looks that a host which came back waits
	// for what must not be there any more: by then it was given up.
	maxCompared = 10
	// settingForgotten names the setting that keeps forgotten hosts.
	settingForgotten = "hosts.forgotten"
	// maxForgotten bounds them; the oldest make room.
	maxForgotten = 200
)

// compared is what a complete look at a returning host showed: VMs whose life
// has ended, and copies of some that are on another host now.
type compared struct{ listed, ended, elsewhere int }

func (c compared) left() int { return c.ended + c.elsewhere }

// compare holds what a host lists against the rows of now.
func compare(tx *state.ReadTx, hostID string, vms []fleet.ObservedVM) (c compared) {
	c.listed = len(vms)
	for _, vm := range vms {
		row, tracked := tx.VMs().GetUID(vm.UID)
		switch {
		case vm.UID == "":
		case !tracked:
			c.ended++
		case row.HostID != hostID:
			c.elsewhere++
		}
	}
	return c
}

// judged goes on with the comparison of a host that has come back: until one
// complete look shows nothing that must not be there, it takes nothing new. It
// needs the lock.
func (s *watch) judged(id string, n *sighting, c compared) {
	if n.Returning == "" {
		return
	}
	n.looks++
	if c.left() > 0 && n.looks < maxCompared {
		n.Returning = fmt.Sprintf("it came back with %d environments that have ended meanwhile and %d that are elsewhere now; they are cleared first", c.ended, c.elsewhere)
		return
	}
	evidence := fmt.Sprintf("%d environments are there, all of them as decided (look %d)", c.listed, n.looks)
	if c.left() > 0 {
		evidence = fmt.Sprintf("after %d looks %d of its %d environments are still not as decided; they were given up", n.looks, c.left(), c.listed)
	}
	n.Returning, n.looks = "", 0
	s.tell(hostEvent(id, fleet.EventHostReturned, fleet.Reason{Actor: fleet.ActorReconcile, Rule: ruleReturned, Evidence: evidence}, nil))
}

// holdForgotten keeps new environments off a host that was forgotten, from
// before its row is there.
func (s *base) holdForgotten(id string, facts fleet.HostFacts) {
	var was *fleet.ForgottenHost
	// The closure never fails, and without the store nothing is registered.
	_ = s.cfg.Store.View(func(tx *state.ReadTx) error {
		was = forgotten(tx, facts)
		return nil
	})
	if was == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.at(id)
	n.Returning = fmt.Sprintf("it was forgotten at %s, as host %s; what it runs is compared first", was.At.UTC().Format(time.RFC3339), was.ID)
	s.sightings[id] = n
}

// letGo ends that for a host that was not registered after all.
func (s *base) letGo(id string) {
	if _, err := s.get(id); err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sightings, id)
}

func forgotten(tx state.Reader, facts fleet.HostFacts) *fleet.ForgottenHost {
	doc, ok := settings.Documents.Get(tx, settingForgotten)
	if !ok || facts.RegistryID == "" {
		return nil
	}
	i := slices.IndexFunc(doc.Forgotten, func(f fleet.ForgottenHost) bool { return f.RegistryID == facts.RegistryID })
	if i < 0 {
		return nil
	}
	return &doc.Forgotten[i]
}

// takeBack ends the record of a host that was forgotten and is registered.
func takeBack(tx *state.Tx, facts fleet.HostFacts) error {
	was := forgotten(tx, facts)
	if was == nil {
		return nil
	}
	doc, _ := settings.Documents.Get(tx, settingForgotten)
	left := slices.DeleteFunc(slices.Clone(doc.Forgotten), func(f fleet.ForgottenHost) bool { return f.RegistryID == facts.RegistryID })
	if len(left) == 0 {
		return settings.Documents.Delete(tx, settingForgotten)
	}
	return settings.Documents.Put(tx, settingForgotten, &fleet.Setting{Forgotten: left})
}

// remember records a host that is given up.
func remember(tx *state.Tx, f fleet.ForgottenHost) error {
	if f.RegistryID == "" {
		return nil // nothing to know it again by
	}
	var all []fleet.ForgottenHost
	if doc, ok := settings.Documents.Get(tx, settingForgotten); ok {
		all = slices.DeleteFunc(slices.Clone(doc.Forgotten), func(o fleet.ForgottenHost) bool { return o.RegistryID == f.RegistryID })
	}
	all = append(all, f)
	all = all[max(0, len(all)-maxForgotten):]
	return settings.Documents.Put(tx, settingForgotten, &fleet.Setting{Forgotten: all})
}

// tellReboot says that a host's machine was started anew since it was last
// seen: nothing of what ran there before can run any more.
func tellReboot(tx *state.Tx, before *fleet.Host, now fleet.HostFacts) {
	was := before.Facts.BootID
	if was == "" || now.BootID == "" || was == now.BootID {
		return
	}
	n := 0
	for range tx.VMs().ByHost(before.ID) {
		n++
	}
	tx.Emit(hostEvent(before.ID, fleet.EventHostRebooted, fleet.Reason{
		Actor: fleet.ActorHost, Rule: ruleRebooted,
		Evidence: fmt.Sprintf("boot id %s, was %s; %d environments were on it", now.BootID, was, n),
	}, map[string]any{"boot_id": now.BootID, "before": was, "environments": n}))
}
