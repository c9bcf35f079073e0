package api

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// action is one value of ?action=, with the limit of its body.
type action struct {
	bodyLimit int
	handle    handler
}

func (s environmentRoutes) environmentActions() map[string]action {
	return map[string]action{
		"drain":    {bodyLimit, s.drain},
		"complete": {bodyLimit, s.complete},
		"exec":     {largeLimit, s.exec},
	}
}

func (s hostRoutes) hostActions() map[string]action {
	return map[string]action{
		"cordon":   {bodyLimit, s.cordon(true)},
		"uncordon": {bodyLimit, s.cordon(false)},
	}
}

func (s environmentRoutes) actOnEnvironment(w http.ResponseWriter, r *request) error {
	return dispatch(s.environmentActions(), w, r)
}

func (s hostRoutes) actOnHost(w http.ResponseWriter, r *request) error {
	return dispatch(s.hostActions(), w, r)
}

func dispatch(actions map[string]action, w http.ResponseWriter, r *request) error {
	name := r.URL.Query().Get("action")
	a, ok := actions[name]
	if !ok {
		return fleet.Errorf(fleet.CodeInvalidArgument, "action %.40q is not known", name).
			With(fleet.DetailScope, "action").With(fleet.DetailLimit, strings.Join(slices.Sorted(maps.Keys(actions)), ", "))
	}
	if len(r.body) > a.bodyLimit {
		return tooLarge(a.bodyLimit)
	}
	return a.handle(w, r)
}

func (s environmentRoutes) drain(w http.ResponseWriter, r *request) error {
	return s.actWithRow(w, r, "drain", s.cfg.Environments.Drain)
}

func (s environmentRoutes) complete(w http.ResponseWriter, r *request) error {
	return s.actWithRow(w, r, "complete", s.cfg.Environments.Complete)
}

// actWithRow runs a verb that answers with the environment.
func (s environmentRoutes) actWithRow(w http.ResponseWriter, r *request, name string, verb func(context.Context, string, string) (*fleet.VM, error)) error {
	var vm *fleet.VM
	answer, err := s.once(w, r, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		var err error
		began := time.Now()
		vm, err = verb(ctx, r.param, r.principal().Actor())
		s.cfg.Metrics.OperationCompleted(name, time.Since(began), err)
		if err != nil || vm == nil {
			return idempotency.Answer{Status: http.StatusOK, ResourceID: r.param}, err
		}
		return idempotency.Answer{Status: http.StatusOK, ResourceID: vm.UID}, nil
	})
	switch {
	case err != nil:
		return err
	case answer.Replayed:
		return s.replayEnvironment(w, http.StatusOK, answer.ResourceID)
	case vm == nil: // it has ended already
		return s.endedLately(w, r.param)
	}
	s.writeJSON(w, http.StatusOK, environmentOf(vm))
	return nil
}

func (s environmentRoutes) endedLately(w http.ResponseWriter, id string) error {
	var env gen.Environment
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		life, ok := latestLife(tx, id)
		if !ok {
			return notFound(tx, id)
		}
		env = endedEnvironment(life)
		return nil
	})
	if err != nil {
		return err
	}
	s.writeJSON(w, http.StatusOK, env)
	return nil
}

func (s environmentRoutes) exec(w http.ResponseWriter, r *request) error {
	var body gen.ExecRequest
	if err := s.decode(w, r, &body); err != nil {
		return err
	}
	const mostMS = int64(1<<63-1) / int64(time.Millisecond)
	req := guestops.ExecRequest{
		Actor: r.principal().Actor(), Cmd: body.Cmd, Shell: body.Shell, Env: body.Env, Cwd: body.Cwd, User: body.User, Stdin: body.StdinB64,
		Timeout: time.Duration(max(min(body.TimeoutMs, mostMS), -mostMS)) * time.Millisecond,
	}
	var res provider.ExecResult
	answer, err := s.once(w, r, idempotency.Refuse, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		var err error
		began := time.Now()
		res, err = s.cfg.Guests.Exec(ctx, r.param, req)
		s.cfg.Metrics.OperationCompleted("exec", time.Since(began), err)
		if err != nil {
			return idempotency.Answer{}, err
		}
		return idempotency.Answer{Status: http.StatusOK, ResourceID: r.param, ExitCode: &res.ExitCode}, nil
	})
	switch {
	case err != nil:
		return err
	case answer.Replayed: // output is not kept
		if answer.ExitCode != nil {
			res.ExitCode = *answer.ExitCode
		}
		s.writeJSON(w, http.StatusOK, gen.ExecResult{ExitCode: res.ExitCode})
		return nil
	}
	s.writeJSON(w, http.StatusOK, execResultOf(res))
	return nil
}

// execResultOf shows output as text; bytes that are none come in base64 too.
func execResultOf(res provider.ExecResult) gen.ExecResult {
	out := gen.ExecResult{
		ExitCode: res.ExitCode, Stdout: string(res.Stdout), Stderr: string(res.Stderr),
		TimedOut: res.TimedOut, Truncated: res.Truncated, Signal: res.Signal,
	}
	if !utf8.Valid(res.Stdout) {
		out.StdoutB64 = res.Stdout
	}
	if !utf8.Valid(res.Stderr) {
		out.StderrB64 = res.Stderr
	}
	return out
}

func writeLog(w http.ResponseWriter, log fleet.StartupLog) error {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(log.Output)))
	h.Set("Fuse-Exit-Code", strconv.Itoa(log.ExitCode))
	if log.Truncated {
		h.Set("Fuse-Truncated", "true")
	}
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(log.Output) // the caller left
	return nil
}
