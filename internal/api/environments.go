package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/state"
)

// environmentRoutes answers for environments.
type environmentRoutes struct{ *Server }

func (s environmentRoutes) listEnvironments(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	after, err := web.DecodeCursor(q.Get("cursor"))
	if err != nil {
		return err
	}
	limit := web.PageLimit(q)
	p := pages.Get().(*page) //nolint:forcetypeassert // the pool holds one type
	defer p.release()
	p.row.sight, p.row.health = s.cfg.Hosts.Sighting, s.cfg.Health
	p.buf = append(p.buf, `{"environments":[`...)
	var next string
	err = s.cfg.Store.View(func(tx *state.ReadTx) error {
		vms := pageOf(tx, q, r.Principal(), after, limit+1)
		if len(vms) > limit {
			vms = vms[:limit]
			next = web.EncodeCursor(vms[limit-1].ID)
		}
		for i, vm := range vms {
			p.add(i == 0, vm)
		}
		return nil
	})
	if err != nil {
		return err
	}
	p.buf = append(p.buf, ']')
	if next != "" {
		p.buf = append(p.buf, `,"next_cursor":"`+next+`"`...) // base64url needs no quoting
	}
	p.buf = append(p.buf, "}\n"...)
	web.WriteRaw(w, http.StatusOK, p.buf)
	return nil
}

// pageOf returns up to n environments after an id that the caller may see and
// that match the query.
func pageOf(tx *state.ReadTx, q url.Values, caller auth.Principal, after string, n int) []*fleet.VM {
	task, st, host, owner, tags := q.Get("task_id"), fleet.VMState(q.Get("state")), q.Get("host_id"), q.Get("owner"), q["tag"]
	matches := func(vm *fleet.VM) bool {
		return caller.Sees(vm.Owner) && tagged(vm.Spec.Tags, tags) && (owner == "" || vm.Owner == owner) && (task == "" || vm.TaskID == task) && (st == "" || vm.State == st) && (host == "" || vm.HostID == host)
	}
	var page []*fleet.VM
	if task != "" {
		if vm, ok := tx.VMs().ByTask(task); ok && vm.ID > after && matches(vm) {
			page = append(page, vm)
		}
		return page
	}
	if owner == "" && !caller.SeesAll() {
		owner = caller.Name
	}
	rows := tx.VMs().After(after)
	switch {
	case owner != "" && !caller.Sees(owner):
		return nil
	case owner != "":
		rows = tx.VMs().ByOwner(owner, after)
	}
	for vm := range rows {
		if matches(vm) {
			if page = append(page, vm); len(page) == n {
				break
			}
		}
	}
	return page
}

func (s environmentRoutes) getEnvironment(w http.ResponseWriter, r *web.Request) error {
	raw, err := s.encodeEnvironment(r)
	if err != nil {
		return err
	}
	web.WriteRaw(w, http.StatusOK, raw)
	return nil
}

// encodeEnvironment returns the JSON of the environment that a path names, as a
// line. An ended one is an error that says how it ended.
func (s environmentRoutes) encodeEnvironment(r *web.Request) ([]byte, error) {
	var raw []byte
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		vm, ok := tx.VMs().Get(r.Param)
		if !ok {
			return notFound(tx, r)
		}
		if !r.Principal().Sees(vm.Owner) {
			return unknownEnvironment(r.Param)
		}
		env := (&row{sight: s.cfg.Hosts.Sighting, health: s.cfg.Health}).of(vm)
		s.doing(env)
		raw = append(appendEnvironment(nil, env), '\n')
		return nil
	})
	return raw, err
}

// unknownEnvironment is the error for an id that the caller knows nothing of.
func unknownEnvironment(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "environment %.140q: %w", id, fleet.ErrVMNotFound)
}

// notFound is the error for a path's id without a live environment.
func notFound(tx *state.ReadTx, r *web.Request) error {
	err := fleet.Errorf(fleet.CodeNotFound, "environment %.140q: %w", r.Param, fleet.ErrVMNotFound)
	if life, ok := latestLife(tx, r.Param); ok && r.Principal().Sees(life.Owner) {
		return err.With("uid", life.UID).With("ended_at", life.EndedAt.UTC().Format(time.RFC3339)).
			With(fleet.DetailReason, life.Reason.String())
	}
	return err
}

// latestLife is the last ended life of an id, if that is not too long ago.
func latestLife(tx *state.ReadTx, id string) (*fleet.Life, bool) {
	life, ok := tx.Lives().Latest(id)
	if !ok || time.Since(life.EndedAt) > fleet.LifeRetention {
		return nil, false
	}
	return life, true
}

func (s environmentRoutes) createEnvironment(w http.ResponseWriter, r *web.Request) error {
	var body gen.CreateEnvironment
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	spec, boot, err := toCreate(&body)
	if err != nil {
		return err
	}
	p := r.Principal()
	req := lifecycle.CreateRequest{TaskID: body.TaskID, Owner: p.Name, Actor: p.Actor(), Spec: spec, Boot: boot}
	create, status := s.cfg.Environments.Create, http.StatusCreated
	if prefersAsync(r.Header) {
		create, status = s.cfg.Environments.CreateAsync, http.StatusAccepted
		w.Header().Set("Preference-Applied", "respond-async")
	}
	var made *fleet.VM
	answer, err := web.Once(w, r, s.cfg.Keeper, idempotency.ByLife, func(ctx context.Context, rec *state.Idempotency) (idempotency.Answer, error) {
		if rec != nil {
			rec.Status = status
		}
		req.Idempotency = rec
		made, err = create(ctx, req)
		if err != nil {
			return idempotency.Answer{}, err
		}
		return idempotency.Answer{Status: status, ResourceID: made.UID}, nil
	})
	if err != nil {
		return discreet(p, err)
	}
	if answer.Replayed {
		switch status = cmp.Or(answer.Status, http.StatusCreated); {
		case status != http.StatusCreated:
		case prefersAsync(r.Header): // this caller does not wait, whatever the first did
			status = http.StatusAccepted
		default: // the first caller may have left before the end
			if _, _, err := s.cfg.Awaiter.Await(r.Context(), answer.ResourceID); err != nil {
				return err
			}
		}
		return s.replayEnvironment(w, status, answer.ResourceID)
	}
	return s.writeEnvironment(w, status, made)
}

// prefersAsync reads Prefer (RFC 7240), whose values may be many and come with
// parameters.
func prefersAsync(h http.Header) bool {
	for _, line := range h.Values("Prefer") {
		for part := range strings.SplitSeq(line, ",") {
			name, _, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(name), "respond-async") {
				return true
			}
		}
	}
	return false
}

func (s environmentRoutes) writeEnvironment(w http.ResponseWriter, status int, vm *fleet.VM) error {
	env := environmentOf(vm)
	w.Header().Set("Location", web.Location("environments", vm.ID))
	web.WriteRaw(w, status, append(appendEnvironment(nil, &env), '\n'))
	return nil
}

// replayEnvironment answers a repeated request with the life it was about, as
// that is now.
func (s environmentRoutes) replayEnvironment(w http.ResponseWriter, status int, uid string) error {
	var env gen.Environment
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		if vm, ok := tx.VMs().GetUID(uid); ok {
			env = environmentOf(vm)
			return nil
		}
		if life, ok := tx.Lives().GetUID(uid); ok {
			env = endedEnvironment(life)
			return nil
		}
		return fleet.Errorf(fleet.CodeNotFound, "the environment of this Idempotency-Key has ended: %w", fleet.ErrVMNotFound)
	})
	if err != nil {
		return err
	}
	w.Header().Set("Location", web.Location("environments", env.ID))
	web.WriteJSON(w, status, env)
	return nil
}

func (s environmentRoutes) destroyEnvironment(w http.ResponseWriter, r *web.Request) error {
	reason := fleet.Reason{Actor: r.Principal().Actor(), Rule: fleet.RuleManualDestroy, Evidence: "request " + r.ID}
	answer, err := web.Once(w, r, s.cfg.Keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.DestroyWait)
		defer cancel()
		began := time.Now()
		err := s.cfg.Environments.Destroy(ctx, r.Param, reason)
		s.cfg.Metrics.OperationCompleted("destroy", time.Since(began), err)
		var pending *lifecycle.PendingError
		switch {
		case err == nil:
			return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, nil
		case errors.As(err, &pending):
			return idempotency.Answer{Status: http.StatusAccepted, ResourceID: r.Param}, nil
		}
		return idempotency.Answer{}, err
	})
	if err != nil {
		return err
	}
	if answer.Status != http.StatusAccepted {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	raw, err := s.encodeEnvironment(r)
	switch fleet.CodeOf(err) {
	case "":
		w.Header().Set("Location", web.Location("environments", r.Param))
		web.WriteRaw(w, http.StatusAccepted, raw)
		return nil
	case fleet.CodeNotFound: // it has ended meanwhile
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return err
}

func (s environmentRoutes) getLogs(w http.ResponseWriter, r *web.Request) error {
	if source := r.URL.Query().Get("source"); source != "" && source != "startup" {
		return fleet.Errorf(fleet.CodeInvalidArgument, "source %.40q is not known", source).
			With(fleet.DetailScope, "source").With(fleet.DetailLimit, "startup")
	}
	var uid string
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		if vm, ok := tx.VMs().Get(r.Param); ok && r.Principal().Sees(vm.Owner) {
			uid = vm.UID
			return nil
		}
		if life, ok := tx.Lives().Latest(r.Param); ok && r.Principal().Sees(life.Owner) {
			uid = life.UID
			return nil
		}
		return notFound(tx, r)
	})
	if err != nil {
		return err
	}
	log, ok, err := s.cfg.Store.StartupLog(r.Context(), uid)
	if err != nil {
		return err
	}
	if !ok {
		return fleet.Errorf(fleet.CodeNotFound, "environment %s has no output of a startup script", r.Param).
			With(fleet.DetailReason, "it had no script, or the script has not ended")
	}
	return writeLog(w, log)
}
