package api

import (
	"context"
	"maps"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

func (s environmentRoutes) environmentActions() map[string]web.Action {
	return map[string]web.Action{
		"drain":    {BodyLimit: web.BodyLimit, Handle: s.drain},
		"complete": {BodyLimit: web.BodyLimit, Handle: s.complete},
		"exec":     {BodyLimit: web.LargeLimit, Handle: s.exec},

		"fork":   {BodyLimit: web.BodyLimit, Handle: s.fork},
		"pause":  {BodyLimit: web.BodyLimit, Handle: s.pause},
		"resume": {BodyLimit: web.BodyLimit, Handle: s.resume},

		"rotate-token": {BodyLimit: web.BodyLimit, Handle: s.rotateToken},
	}
}

func (s hostRoutes) hostActions() map[string]web.Action {
	all := map[string]web.Action{
		"cordon":   {BodyLimit: web.BodyLimit, Handle: s.cordon(true)},
		"uncordon": {BodyLimit: web.BodyLimit, Handle: s.cordon(false)},
	}
	maps.Copy(all, s.cfg.HostActions)
	return all
}

func (s environmentRoutes) actOnEnvironment(w http.ResponseWriter, r *web.Request) error {
	return web.Dispatch(s.environmentActions(), w, r)
}

func (s hostRoutes) actOnHost(w http.ResponseWriter, r *web.Request) error {
	return web.Dispatch(s.hostActions(), w, r)
}

func (s environmentRoutes) drain(w http.ResponseWriter, r *web.Request) error {
	return s.actWithRow(w, r, "drain", s.cfg.Environments.Drain)
}

func (s environmentRoutes) complete(w http.ResponseWriter, r *web.Request) error {
	return s.actWithRow(w, r, "complete", func(ctx context.Context, id, actor string) (*fleet.VM, error) {
		return s.cfg.Environments.Complete(ctx, id, actor, "request "+r.ID)
	})
}

// actWithRow runs a verb that answers with the environment.
func (s environmentRoutes) actWithRow(w http.ResponseWriter, r *web.Request, name string, verb func(context.Context, string, string) (*fleet.VM, error)) error {
	var vm *fleet.VM
	answer, err := web.Once(w, r, s.cfg.Keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		var err error
		began := time.Now()
		vm, err = verb(ctx, r.Param, r.Principal().Actor())
		s.cfg.Metrics.OperationCompleted(name, time.Since(began), err)
		if err != nil || vm == nil {
			return idempotency.Answer{Status: http.StatusOK, ResourceID: r.Param}, err
		}
		return idempotency.Answer{Status: http.StatusOK, ResourceID: vm.UID}, nil
	})
	switch {
	case err != nil:
		return discreet(r.Principal(), err)
	case answer.Replayed:
		return s.replayEnvironment(w, http.StatusOK, answer.ResourceID)
	case vm == nil: // it has ended already
		return s.endedLately(w, r)
	}
	web.WriteJSON(w, http.StatusOK, environmentOf(vm))
	return nil
}

func (s environmentRoutes) endedLately(w http.ResponseWriter, r *web.Request) error {
	var env gen.Environment
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		life, ok := latestLife(tx, r.Param)
		if !ok || !r.Principal().Sees(life.Owner) {
			return notFound(tx, r)
		}
		env = endedEnvironment(life)
		return nil
	})
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, env)
	return nil
}

func (s environmentRoutes) exec(w http.ResponseWriter, r *web.Request) error {
	var body gen.ExecRequest
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	const mostMS = int64(1<<63-1) / int64(time.Millisecond)
	req := guestops.ExecRequest{
		Actor: r.Principal().Actor(), Cmd: body.Cmd, Shell: body.Shell, Env: body.Env, Cwd: body.Cwd, User: body.User, Stdin: body.StdinB64,
		Timeout: time.Duration(max(min(body.TimeoutMs, mostMS), -mostMS)) * time.Millisecond,
	}
	var res provider.ExecResult
	answer, err := web.Once(w, r, s.cfg.Keeper, idempotency.Refuse, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		var err error
		began := time.Now()
		res, err = s.cfg.Guests.Exec(ctx, r.Param, req)
		s.cfg.Metrics.OperationCompleted("exec", time.Since(began), err)
		if err != nil {
			return idempotency.Answer{}, err
		}
		return idempotency.Answer{Status: http.StatusOK, ResourceID: r.Param, ExitCode: &res.ExitCode}, nil
	})
	switch {
	case err != nil:
		return err
	case answer.Replayed: // output is not kept
		if answer.ExitCode != nil {
			res.ExitCode = *answer.ExitCode
		}
		web.WriteJSON(w, http.StatusOK, gen.ExecResult{ExitCode: res.ExitCode})
		return nil
	}
	web.WriteJSON(w, http.StatusOK, execResultOf(res))
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
