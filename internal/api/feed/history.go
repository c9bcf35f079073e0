package feed

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// A history has at most the first and the last so many events of a life; one
// that has more was retried for days.
const (
	firstFacts = 300
	lastFacts  = 700
)

func (s routes) history(w http.ResponseWriter, r *web.Request) error {
	c := events.Case{Now: time.Now(), MaxRuntime: s.MaxRuntime, IdleTimeout: s.IdleTimeout}
	var lives []gen.Lifetime
	err := s.Store.View(func(tx *state.ReadTx) (err error) {
		c.VM, c.Ended, err = find(tx, r)
		if err == nil {
			lives = livesOf(tx, r, &c)
		}
		return err
	})
	if fleet.CodeOf(err) == fleet.CodeNotFound {
		c.Ended, lives, err = s.recall(r, err)
	}
	if err != nil {
		return err
	}
	if err := s.gather(r.Context(), &c); err != nil {
		return err
	}
	out := historyOf(events.Explain(c))
	out.Lives = lives
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

// find picks the life that is asked for: the present one, else the last, else
// the one that is named. What the caller may not see is not there.
func find(tx *state.ReadTx, r *web.Request) (*fleet.VM, *fleet.Life, error) {
	id, uid, p := r.Param, r.URL.Query().Get("uid"), r.Principal()
	vm, live := tx.VMs().Get(id)
	if !live {
		vm, live = tx.VMs().ByTask(id)
	}
	if live && (uid == "" || uid == vm.UID) && p.Sees(vm.Owner) {
		return vm, nil, nil
	}
	for life := range tx.Lives().ByVM(id) {
		if (uid == "" || uid == life.UID) && p.Sees(life.Owner) {
			return nil, life, nil
		}
	}
	return nil, nil, fleet.Errorf(fleet.CodeNotFound, "environment %.140q: %w", id, fleet.ErrVMNotFound).
		With(fleet.DetailRemedy, "an ended life is explained for as long as its record or its events are kept; 'fuse ls' shows those that are there")
}

// recall makes the record of a life, which is kept for a day, anew from its
// events, which are kept longer: of the last life of the id that ended, or of
// the one that is named. A machine that no record tracked has only those.
func (s routes) recall(r *web.Request, notFound error) (*fleet.Life, []gen.Lifetime, error) {
	uid, caller := r.URL.Query().Get("uid"), r.Principal()
	var first, begun, end fleet.Event // begun is the first that is kept of the life that end ends
	for q := (state.EventQuery{VMID: r.Param, UID: uid}); ; {
		list, err := s.Store.Events(r.Context(), q)
		if err != nil {
			return nil, nil, err
		}
		for _, e := range list {
			if e.UID != first.UID {
				first = e
			}
			q.After = e.Seq
			if (fleet.IsTerminalState(e.State) || e.Type == fleet.EventVMOrphanDestroy) && caller.Sees(e.Owner) {
				begun, end = first, e
			}
		}
		if len(list) < state.MaxEventPage {
			break
		}
	}
	if end.Reason == nil {
		return nil, nil, notFound
	}
	l := &fleet.Life{
		UID: end.UID, VMID: r.Param, HostID: end.HostID, Owner: end.Owner, State: cmp.Or(end.State, fleet.VMStateDestroyed), Reason: *end.Reason,
		Error: end.Error, CreatedAt: begun.At, EndedAt: end.At, EndedSeq: end.Seq,
	}
	return l, []gen.Lifetime{{UID: l.UID, State: string(l.State), CreatedAt: l.CreatedAt.UTC(), EndedAt: l.EndedAt.UTC()}}, nil
}

// livesOf lists the lives of the id that the caller sees, the newest first.
func livesOf(tx *state.ReadTx, r *web.Request, c *events.Case) (out []gen.Lifetime) {
	id := r.Param
	if c.VM != nil {
		id = c.VM.ID
	}
	if vm, ok := tx.VMs().Get(id); ok && r.Principal().Sees(vm.Owner) {
		out = append(out, gen.Lifetime{UID: vm.UID, State: string(vm.State), CreatedAt: vm.CreatedAt.UTC()})
	}
	const most = 100
	for life := range tx.Lives().ByVM(id) {
		if r.Principal().Sees(life.Owner) && len(out) < most {
			out = append(out, gen.Lifetime{UID: life.UID, State: string(life.State), CreatedAt: life.CreatedAt.UTC(), EndedAt: life.EndedAt.UTC()})
		}
	}
	return out
}

// gather reads what the log and the hosts have to say of a life.
func (s routes) gather(ctx context.Context, c *events.Case) error {
	var uid, host string
	var upTo uint64
	if c.VM != nil {
		uid, host = c.VM.UID, c.VM.HostID
		if sight := s.Sight(host); host != "" {
			c.Sight = &sight
		}
	} else {
		uid, host, upTo = c.Ended.UID, c.Ended.HostID, c.Ended.EndedSeq
	}
	for q := (state.EventQuery{UID: uid}); ; {
		list, err := s.Store.Events(ctx, q)
		if err != nil {
			return err
		}
		c.Events = append(c.Events, list...)
		if over := len(c.Events) - firstFacts - lastFacts; over > 0 {
			c.Events = append(c.Events[:firstFacts], c.Events[firstFacts+over:]...)
		}
		if len(list) < state.MaxEventPage {
			break
		}
		q.After = list[len(list)-1].Seq
	}
	if host != "" && len(c.Events) > 0 {
		list, err := s.Store.Events(ctx, state.EventQuery{HostID: host, After: c.Events[0].Seq, UpTo: upTo})
		if err != nil {
			return err
		}
		for i := range list {
			if t := list[i].Type; t == fleet.EventHostUnreachable || t == fleet.EventHostReachable {
				c.Host = append(c.Host, list[i])
			}
		}
	}
	log, ok, err := s.Store.StartupLog(ctx, uid)
	if ok {
		c.Startup = &log
	}
	return err
}

func historyOf(s events.Story) gen.History {
	out := gen.History{
		ID: s.ID, UID: s.UID, TaskID: s.TaskID, Owner: s.Owner, HostID: s.HostID, State: string(s.State), CreatedAt: s.CreatedAt.UTC(),
		Summary: s.Summary, Next: s.Next, Incomplete: s.Cut, Facts: make([]gen.Fact, 0, len(s.Facts)),
	}
	if !s.EndedAt.IsZero() {
		out.EndedAt = s.EndedAt.UTC()
	}
	for _, f := range s.Facts {
		fact := gen.Fact{At: f.At.UTC(), Type: f.Type, Text: f.Text, Detail: f.Detail}
		if f.Reason != nil {
			fact.Reason = &gen.Reason{Actor: f.Reason.Actor, Rule: f.Reason.Rule, Evidence: f.Reason.Evidence}
		}
		if f.Event != 0 {
			fact.EventID = fleet.EventID(f.Event)
		}
		out.Facts = append(out.Facts, fact)
	}
	return out
}
