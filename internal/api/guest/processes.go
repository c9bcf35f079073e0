package guest

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/uid"
)

const (
	// holdLinger is how long a process that holds its output goes on unread,
	// unless its caller says otherwise.
	holdLinger = 5 * time.Minute
	maxWait    = 10 * time.Minute
	mostMS     = int64(1<<63-1) / int64(time.Millisecond)
)

func (s routes) list(w http.ResponseWriter, r *web.Request) error {
	session, err := s.open(r, "processes.read", nil)
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := quick(r)
	defer cancel()
	res, err := session.Processes.ListProcesses(ctx, connect.NewRequest(&guestwirev1.ListProcessesRequest{}))
	if err != nil {
		return session.Explain(ctx, err)
	}
	out := gen.ProcessList{Processes: []gen.Process{}}
	for _, p := range res.Msg.GetProcesses() {
		out.Processes = append(out.Processes, processOf(p))
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s routes) start(w http.ResponseWriter, r *web.Request) error {
	var body gen.StartProcess
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	m, err := startMessage(body)
	if err != nil {
		return err
	}
	session, err := s.open(r, "exec", map[string]string{"command": m.GetCommand().GetArgv()[0]})
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := quick(r)
	defer cancel()
	res, err := session.Processes.StartProcess(ctx, connect.NewRequest(m))
	if err != nil {
		return session.Explain(ctx, err)
	}
	web.WriteJSON(w, http.StatusCreated, processOf(res.Msg.GetProcess()))
	return nil
}

// startMessage checks what is to be started.
func startMessage(body gen.StartProcess) (*guestwirev1.StartProcessRequest, error) {
	req := guestops.ExecRequest{
		Cmd: body.Cmd, Shell: body.Shell, Env: body.Env, Cwd: body.Cwd, User: body.User,
		Timeout: time.Duration(max(min(body.TimeoutMs, mostMS), -mostMS)) * time.Millisecond,
	}
	spec, err := req.Spec()
	if err != nil {
		return nil, err
	}
	m := &guestwirev1.StartProcessRequest{
		Id: body.ID, KeepBytes: body.KeepBytes, Hold: body.Hold, LingerMs: body.LingerMs,
		Command: &guestwirev1.ExecStart{
			Argv: spec.Argv, Env: spec.Env, Cwd: spec.Cwd, User: spec.User, TimeoutMs: spec.Timeout.Milliseconds(), Stdin: body.Stdin,
		},
	}
	for field, n := range map[string]int64{"keep_bytes": body.KeepBytes, "linger_ms": body.LingerMs} {
		if n < 0 || n > mostMS {
			return nil, fleet.Invalid(field, "0 or more", "leave it out for the default", "is %d", n)
		}
	}
	if m.GetId() == "" {
		m.Id = strings.ToLower(uid.New())
	}
	if m.GetHold() && m.GetLingerMs() == 0 {
		m.LingerMs = holdLinger.Milliseconds()
	}
	if body.Tty != nil {
		m.Terminal = &guestwirev1.Terminal{Rows: uint32(max(body.Tty.Rows, 0)), Cols: uint32(max(body.Tty.Cols, 0))}
	}
	return m, nil
}

// processOf shows a process. What a guest says is text of unknown make: it is
// kept valid, and the command line makes it harmless.
func processOf(p *guestwirev1.ProcessInfo) gen.Process {
	out := gen.Process{
		ID: p.GetId(), State: "running", PID: int(p.GetPid()), Cmd: []string{}, StartedAt: time.UnixMilli(p.GetStartedUnixMs()).UTC(),
		TTY: p.GetTerminal(), Stdin: p.GetTakesInput(), StdinBytes: p.GetInput(), Failure: p.GetFailure(),
		Stdout: keptOf(p.GetStdout()), Stderr: keptOf(p.GetStderr()),
	}
	for _, a := range p.GetArgv() {
		out.Cmd = append(out.Cmd, strings.ToValidUTF8(a, "\uFFFD"))
	}
	if e := p.GetExit(); e != nil {
		code, ended := int(e.GetExitCode()), time.UnixMilli(p.GetEndedUnixMs()).UTC()
		out.State, out.ExitCode, out.EndedAt = "exited", &code, ended
		out.Signal, out.TimedOut = e.GetSignal(), e.GetTimedOut()
	}
	return out
}

func keptOf(k *guestwirev1.Kept) gen.KeptOutput {
	return gen.KeptOutput{Start: k.GetStart(), End: k.GetEnd()}
}

func (s routes) get(w http.ResponseWriter, r *web.Request) error {
	wait, err := number(r.URL.Query(), "wait_ms")
	if err != nil {
		return err
	}
	wait = min(wait, maxWait.Milliseconds())
	session, err := s.open(r, "processes.read", nil)
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := context.WithTimeout(r.Context(), quickLimit+time.Duration(wait)*time.Millisecond)
	defer cancel()
	res, err := session.Processes.WaitProcess(ctx, connect.NewRequest(&guestwirev1.WaitProcessRequest{Id: r.Item, WaitMs: wait}))
	if err != nil {
		return session.Explain(ctx, err)
	}
	web.WriteJSON(w, http.StatusOK, processOf(res.Msg.GetProcess()))
	return nil
}

func (s routes) act(w http.ResponseWriter, r *web.Request) error {
	return web.Dispatch(map[string]web.Action{
		"signal": {BodyLimit: web.BodyLimit, Handle: s.signal},
		"resize": {BodyLimit: web.BodyLimit, Handle: s.resize},
		"adjust": {BodyLimit: web.BodyLimit, Handle: s.adjust},
	}, w, r)
}

// call runs a short call of a process and answers with nothing.
func (s routes) call(w http.ResponseWriter, r *web.Request, verb string, call func(context.Context, *guestops.Session) error) error {
	session, err := s.open(r, verb, map[string]string{"process": r.Item})
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := quick(r)
	defer cancel()
	if err := call(ctx, session); err != nil {
		return session.Explain(ctx, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s routes) signal(w http.ResponseWriter, r *web.Request) error {
	var body gen.ProcessAction
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	sig, err := signalOf(body.Signal)
	if err != nil {
		return err
	}
	return s.call(w, r, "process.signal", func(ctx context.Context, session *guestops.Session) error {
		_, err := session.Processes.SignalProcess(ctx, connect.NewRequest(&guestwirev1.SignalProcessRequest{Id: r.Item, Signal: sig, Tree: body.Tree}))
		return err
	})
}

// signalOf reads a name, with or without SIG, or a number.
func signalOf(name string) (int32, error) {
	upper := strings.ToUpper(name)
	if !strings.HasPrefix(upper, "SIG") {
		upper = "SIG" + upper
	}
	sig := int(unix.SignalNum(upper))
	if n, err := strconv.Atoi(name); err == nil {
		sig = n
	}
	if sig < 1 || sig > 64 {
		return 0, fleet.Invalid("signal", "a name such as TERM, or 1 to 64", "name a signal", "%.40q is not known", name)
	}
	return int32(sig), nil
}

func (s routes) resize(w http.ResponseWriter, r *web.Request) error {
	var body gen.ProcessAction
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	if body.Rows < 1 || body.Cols < 1 {
		return fleet.Invalid("rows", "rows and cols of 1 or more", "give both", "and cols are %d and %d", body.Rows, body.Cols)
	}
	return s.call(w, r, "process.resize", func(ctx context.Context, session *guestops.Session) error {
		_, err := session.Processes.ResizeProcess(ctx, connect.NewRequest(&guestwirev1.ResizeProcessRequest{
			Id: r.Item, Terminal: &guestwirev1.Terminal{Rows: uint32(body.Rows), Cols: uint32(body.Cols)},
		}))
		return err
	})
}

func (s routes) adjust(w http.ResponseWriter, r *web.Request) error {
	var body gen.ProcessAction
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	if body.LingerMs < 0 || body.LingerMs > mostMS {
		return fleet.Invalid("linger_ms", "0 or more", "0 is never", "is %d", body.LingerMs)
	}
	if body.Hold && body.LingerMs == 0 {
		body.LingerMs = holdLinger.Milliseconds()
	}
	return s.call(w, r, "process.adjust", func(ctx context.Context, session *guestops.Session) error {
		_, err := session.Processes.AdjustProcess(ctx, connect.NewRequest(&guestwirev1.AdjustProcessRequest{Id: r.Item, Hold: body.Hold, LingerMs: body.LingerMs}))
		return err
	})
}

func (s routes) remove(w http.ResponseWriter, r *web.Request) error {
	return s.call(w, r, "process.remove", func(ctx context.Context, session *guestops.Session) error {
		_, err := session.Processes.RemoveProcess(ctx, connect.NewRequest(&guestwirev1.RemoveProcessRequest{Id: r.Item}))
		return err
	})
}

func (s routes) input(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	offset, err := number(q, "offset")
	if err != nil {
		return err
	}
	eof, err := flag(q, "eof")
	if err != nil {
		return err
	}
	session, err := s.open(r, "process.input", map[string]string{"process": r.Item})
	if err != nil {
		return err
	}
	defer session.Close()
	ctx := r.Context() // a process that does not read makes its sender wait
	res, err := session.Processes.SendInput(ctx, connect.NewRequest(&guestwirev1.SendInputRequest{Id: r.Item, Offset: offset, Data: r.Payload, Eof: eof}))
	if err != nil {
		return session.Explain(ctx, err)
	}
	web.WriteJSON(w, http.StatusOK, gen.ProcessInput{Offset: res.Msg.GetOffset()})
	return nil
}
