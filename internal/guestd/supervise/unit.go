package supervise

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/health"
	"github.com/fusevm/fuse/internal/guestd/procs"
	"github.com/fusevm/fuse/internal/services"
)

// How restarts wait: longer each time in a row, and from the beginning again
// after a run that was long.
const (
	backoffFirst = time.Second
	backoffMost  = time.Minute
	settledAfter = time.Minute
)

// lookEvery is how long one wait for a process's end lasts at most.
const lookEvery = time.Hour

// killWait bounds the wait for a service that was killed.
const killWait = 10 * time.Second

// State is where a service stands.
type State string

// The states. Exited, failed and stopped are ends.
const (
	Waiting  State = "waiting"  // for what it depends on
	Running  State = "running"  //
	Backoff  State = "backoff"  // it ended and is to be started again
	Exited   State = "exited"   // it ended well and stays so
	Failed   State = "failed"   // it ended badly, or cannot be started, and stays so
	Stopping State = "stopping" //
	Stopped  State = "stopped"  // by a drain or another manifest
)

// Status is how a service is.
type Status struct {
	Name     string
	State    State
	Since    time.Time
	Health   fleet.HealthState // empty without a healthcheck, or before it runs
	Restarts int
	Process  string // id of its last process
	ExitCode int    // of its last end
	Ended    bool   // it has ended at least once
	Message  string
}

// unit runs one service.
type unit struct {
	g       *graph
	service services.Service
	ctx     context.Context // ends when it is to start no more
	close   context.CancelFunc
	halt    chan struct{} // closed when its process is to end
	stopped sync.Once     // closes halt
	done    chan struct{} // run has returned
	kept    []string      // of run alone: processes whose output is kept

	mu     sync.Mutex
	status Status
}

func newUnit(g *graph, s services.Service) *unit {
	u := &unit{g: g, service: s, halt: make(chan struct{}), done: make(chan struct{})}
	u.ctx, u.close = context.WithCancel(g.ctx)
	u.status = Status{Name: s.Name, State: Waiting, Since: time.Now()}
	return u
}

func (u *unit) look() Status {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.status
}

// set changes the status and wakes those that wait for it.
func (u *unit) set(change func(*Status)) {
	u.mu.Lock()
	before := u.status.State
	change(&u.status)
	if u.status.State != before {
		u.status.Since = time.Now()
	}
	u.mu.Unlock()
	u.g.tell()
}

func (u *unit) run() {
	defer close(u.done)
	if !u.awaitOthers() {
		return
	}
	wait, row := backoffFirst, 0 // restarts in a row
	for {
		began := time.Now()
		info, err := u.once()
		if u.ctx.Err() != nil || u.g.ctx.Err() != nil {
			return
		}
		if time.Since(began) >= settledAfter {
			wait, row = backoffFirst, 0
		}
		if !u.again(info, err, row, wait) {
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-u.ctx.Done():
			timer.Stop()
			return
		}
		wait, row = min(2*wait, backoffMost), row+1
		u.set(func(s *Status) { s.Restarts++ })
	}
}

// awaitOthers returns once all that the service depends on is as it has to be.
func (u *unit) awaitOthers() bool {
	for {
		change := u.g.change()
		missing := u.missing()
		u.mu.Lock()
		u.status.Message = missing
		u.mu.Unlock()
		if missing == "" {
			return u.ctx.Err() == nil
		}
		select {
		case <-change:
		case <-u.ctx.Done():
			return false
		}
	}
}

// missing says what keeps the service from starting; empty if nothing does.
func (u *unit) missing() string {
	for _, name := range slices.Sorted(maps.Keys(u.service.DependsOn)) {
		need, other := u.service.DependsOn[name], u.g.byName[name].look()
		ready := other.State == Running || other.State == Exited
		if need == services.Healthy {
			ready = other.State == Running && other.Health == fleet.HealthPassing
		}
		if !ready {
			return fmt.Sprintf("waits for %s to be %s; it is %s", name, need, other.State)
		}
	}
	return ""
}

// once runs the service to an end.
func (u *unit) once() (procs.Info, error) {
	start, err := u.command()
	if err != nil {
		return procs.Info{}, err
	}
	id := "svc-" + u.service.Name + "." + strconv.Itoa(u.g.number(u.service.Name))
	// The start is seen through even if the service is to stop meanwhile: what
	// runs has to be known.
	started, err := u.g.cfg.Processes.Start(u.g.ctx, procs.Spec{ID: id, Command: start.Command, Namespaces: start.Namespaces})
	if err != nil {
		return procs.Info{}, err
	}
	// The last run's output stays beside this one's; an older one goes, if it
	// is not forgotten already.
	if u.kept = append(u.kept, id); len(u.kept) > 2 {
		_ = u.g.cfg.Processes.Remove(u.g.ctx, u.kept[0])
		u.kept = u.kept[1:]
	}
	u.set(func(s *Status) {
		s.State, s.Process, s.Message, s.Health = Running, id, "", ""
		if u.service.Probe != nil {
			s.Health = fleet.HealthStarting
		}
	})
	probing, stop := context.WithCancel(u.ctx)
	var probe sync.WaitGroup
	defer probe.Wait()
	defer stop()
	if u.service.Probe != nil {
		probe.Go(func() { u.probe(probing, func(argv []string) fleet.ExecSpec { return start.Enter(started.PID, argv) }) })
	}
	ended := make(chan end, 1)
	u.g.wait.Go(func() { ended <- u.await(id) }) // of one that cannot be killed it outlives the unit
	select {
	case e := <-ended:
		return e.info, e.err
	case <-u.halt:
	}
	stop()
	return u.terminate(id, ended)
}

// end is how a process ended.
type end struct {
	info procs.Info
	err  error
}

func (u *unit) await(id string) end {
	for {
		info, err := u.g.cfg.Processes.Wait(u.g.ctx, id, lookEvery)
		if err != nil || !info.Ended.IsZero() {
			return end{info, err}
		}
	}
}

// terminate ends the service's process with all it started: TERM, then KILL
// once its grace is over. In an image of its own TERM goes to the program that
// the image names, as images expect.
func (u *unit) terminate(id string, ended <-chan end) (procs.Info, error) {
	u.set(func(s *Status) { s.State, s.Health, s.Message = Stopping, "", "" })
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGTERM, u.service.StopGrace}, {syscall.SIGKILL, killWait}} {
		_ = u.g.cfg.Processes.Signal(id, step.signal, u.service.Image == "" || step.signal == syscall.SIGKILL) // it may have ended just now
		timer := time.NewTimer(step.wait)
		select {
		case e := <-ended:
			timer.Stop()
			if e.err == nil {
				u.set(func(s *Status) { s.ExitCode, s.Ended = e.info.Status.ExitCode, true })
			}
			return e.info, e.err
		case <-timer.C:
		}
	}
	err := fleet.Errorf(fleet.CodeUnavailable, "it does not end, even killed")
	u.set(func(s *Status) { s.Message = err.Error() })
	return procs.Info{}, err
}

// command is what the service runs, secrets in their places.
func (u *unit) command() (Contained, error) {
	env, err := u.env()
	if err != nil {
		return Contained{}, err
	}
	if u.service.Image != "" {
		if u.g.cfg.Contain == nil {
			return Contained{}, fleet.Errorf(fleet.CodeUnimplemented, "this guest agent runs no service in an image of its own")
		}
		return u.g.cfg.Contain(u.ctx, u.service, env, slices.Sorted(maps.Keys(u.g.byName)))
	}
	spec := fleet.ExecSpec{Argv: u.service.Command, Cwd: u.service.Workdir, User: u.service.User, Env: env}
	if len(spec.Argv) == 0 {
		spec.Argv = u.g.cfg.Program
	}
	if len(spec.Argv) == 0 {
		return Contained{}, fleet.Errorf(fleet.CodeInvalidArgument, "the service has no command, and neither has the image")
	}
	return Contained{Command: spec, Enter: func(_ int, argv []string) fleet.ExecSpec {
		probe := spec
		probe.Argv = argv
		return probe
	}}, nil
}

// env are the service's variables.
func (u *unit) env() (map[string]string, error) {
	var secrets map[string]string
	names := map[string]bool{}
	if u.service.Env.Secrets(names); len(names) > 0 {
		doc, err := u.g.cfg.Read(fleet.FuseSecretsPath)
		if err != nil || json.Unmarshal(doc, &secrets) != nil {
			return nil, fleet.Errorf(fleet.CodeUnavailable, "the machine's secrets cannot be read")
		}
	}
	return u.service.Env.Resolve(secrets), nil
}

// again says whether the service is to be started once more, and notes it.
func (u *unit) again(info procs.Info, err error, row int, wait time.Duration) bool {
	failed := err != nil || info.Failure != nil || info.Status.ExitCode != 0
	why := ""
	switch {
	case err != nil:
		why = err.Error()
	case info.Failure != nil:
		why = info.Failure.Error()
	case failed:
		why = fmt.Sprintf("ended with exit code %d", info.Status.ExitCode)
	}
	again := u.service.Restart == services.RestartAlways || u.service.Restart == services.RestartUnlessStopped ||
		u.service.Restart == services.RestartOnFailure && failed
	if code := fleet.CodeOf(err); err != nil && (code == fleet.CodeInvalidArgument || code == fleet.CodeUnimplemented) {
		again = false // another try says the same
	}
	if most := u.service.MaxRestarts; again && most > 0 && row >= most {
		again, why = false, strings.TrimPrefix(why+fmt.Sprintf("; %d restarts in a row did not help", most), "; ")
	}
	u.set(func(s *Status) {
		s.Health, s.Message = "", why
		if err == nil {
			s.ExitCode, s.Ended = info.Status.ExitCode, true
		}
		switch {
		case again:
			s.State = Backoff
			s.Message = strings.TrimPrefix(why+"; starts again in "+wait.String(), "; ")
		case failed:
			s.State = Failed
		default:
			s.State = Exited
		}
	})
	return again
}

func (u *unit) probe(ctx context.Context, enter func(argv []string) fleet.ExecSpec) {
	judge := health.NewJudge(*u.service.Probe, time.Now())
	interval, timeout := judge.Times()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		spec := enter(u.service.Probe.Exec)
		spec.Timeout = timeout
		exit, output, err := u.g.cfg.Probe(ctx, spec)
		if ctx.Err() != nil {
			return
		}
		problem := ""
		switch {
		case err != nil:
			problem = err.Error()
		case exit != 0:
			problem = strings.TrimSuffix(fmt.Sprintf("exit code %d: %s", exit, strings.TrimSpace(strings.ToValidUTF8(output, ""))), ": ")
		}
		verdict := judge.Attempt(time.Now(), problem)
		u.set(func(s *Status) {
			if s.State == Running {
				s.Health, s.Message = verdict.State, verdict.Message
			}
		})
		timer.Reset(max(0, interval-time.Since(began)))
	}
}

// stop ends the service and returns when it has.
func (u *unit) stop(ctx context.Context) error {
	u.close()
	u.stopped.Do(func() { close(u.halt) })
	select {
	case <-u.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var err error
	u.set(func(s *Status) {
		switch {
		case s.State == Stopping && s.Message != "":
			err = fleet.Errorf(fleet.CodeUnavailable, "service %s: %s", s.Name, s.Message)
		case s.State != Exited && s.State != Failed:
			s.State, s.Health, s.Message = Stopped, "", ""
		}
	})
	return err
}
