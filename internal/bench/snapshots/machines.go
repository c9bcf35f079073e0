package snapshots

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/bench"
)

// execLimit bounds a command in a guest, of which filling memory is the longest.
const execLimit = 10 * time.Minute

func (s *size) say(format string, args ...any) {
	s.Progress(fmt.Sprintf("%d MB: %s", s.shape.RAMMB, fmt.Sprintf(format, args...)))
}

func (s *size) note(format string, args ...any) {
	s.report.Notes = append(s.report.Notes, fmt.Sprintf(format, args...))
}

// ids are names for environments of this run.
func (s *size) ids(n int) []string {
	out := make([]string, n)
	for i := range out {
		s.made++
		out[i] = fmt.Sprintf("%s-%d", s.tag, s.made)
	}
	return out
}

// create makes a machine and runs a first command in it.
func (s *size) create(ctx context.Context, golden string) (gen.Environment, error) {
	env, err := s.createAs(ctx, s.ids(1)[0], golden)
	if env.ID != "" {
		s.envs = append(s.envs, env)
	}
	return env, err
}

func (s *size) createAs(ctx context.Context, task, golden string) (gen.Environment, error) {
	env, err := s.API.API.Create(ctx, gen.CreateEnvironment{
		TaskID: task, Golden: golden, Spec: gen.Spec{CPUs: 1, RAMMB: int32(s.shape.RAMMB), StorageGB: 1, Image: s.Image},
	}, client.CreateOptions{})
	if err != nil {
		return gen.Environment{}, err
	}
	return env, s.exec(ctx, env, "true")
}

// fork makes forks and runs a first command in each, all at once. Those for which
// there was no room are noted.
func (s *size) fork(ctx context.Context, source gen.Environment, n int) ([]gen.Environment, error) {
	made, err := s.API.Fork(ctx, source.ID, gen.ForkEnvironment{Live: true, Count: n})
	s.envs = append(s.envs, made.Environments...)
	if err != nil {
		return nil, err
	}
	if len(made.Failures) > 0 {
		s.note("%d of %d forks could not be made: %s", len(made.Failures), n, made.Failures[0].Message)
	}
	_, err = bench.Each(ctx, len(made.Environments), len(made.Environments), func(ctx context.Context, i int) error {
		return s.exec(ctx, made.Environments[i], "true")
	})
	return made.Environments, err
}

func (s *size) exec(ctx context.Context, env gen.Environment, argv ...string) error {
	res, err := s.API.API.Exec(ctx, env.ID, gen.ExecRequest{Cmd: argv, TimeoutMs: execLimit.Milliseconds()})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("%v ended with %d: %s", argv, res.ExitCode, res.Stderr)
	}
	return err
}

func (s *size) destroy(ctx context.Context, envs ...gen.Environment) (err error) {
	for _, env := range envs {
		_, derr := s.API.API.Destroy(ctx, env.ID)
		if derr == nil {
			s.envs = slices.DeleteFunc(s.envs, func(e gen.Environment) bool { return e.ID == env.ID })
		}
		err = errors.Join(err, derr)
	}
	return err
}

func (s *size) remove(ctx context.Context, id string) error {
	if err := s.API.Remove(ctx, id); err != nil {
		return err
	}
	s.snaps = slices.DeleteFunc(s.snaps, func(other string) bool { return other == id })
	return nil
}

// clean removes all that is still there, the latest first: forks before what
// they were made from.
func (s *size) clean(ctx context.Context) (err error) {
	within := func(f func(ctx context.Context) error) {
		ctx, cancel := context.WithTimeout(ctx, cleanLimit)
		defer cancel()
		err = errors.Join(err, f(ctx))
	}
	for _, env := range slices.Backward(slices.Clone(s.envs)) {
		within(func(ctx context.Context) error { return s.destroy(ctx, env) })
	}
	for _, id := range slices.Clone(s.snaps) {
		within(func(ctx context.Context) error { return s.remove(ctx, id) })
	}
	return err
}

// memory notes what machines take, if their processes are on this machine.
func (s *size) memory(name string, envs []gen.Environment) (m Memory, ok bool) {
	m = Memory{Name: name, Machines: len(envs)}
	for _, env := range envs {
		guest, rest, err := share(env.UID, int64(s.shape.RAMMB)<<20)
		if err != nil {
			s.note("memory of %s: %v", name, err)
			return m, false
		}
		m.GuestMB += float64(guest) / (1 << 20)
		m.Process += float64(rest) / (1 << 20)
	}
	s.report.Memory = append(s.report.Memory, m)
	return m, len(envs) > 0
}

// guestBytes is what a machine's guest takes of the host's memory; 0 if that
// cannot be seen here.
func (s *size) guestBytes(env gen.Environment) int64 {
	guest, _, err := share(env.UID, int64(s.shape.RAMMB)<<20)
	if err != nil {
		return 0
	}
	return guest
}

// times are those of one thing, as they are measured.
type times struct {
	name, goal string
	took       []time.Duration
	bytes      int64
}

func (t *times) add(d time.Duration) { t.took = append(t.took, d) }

// add reports them.
func (s *size) add(t times) {
	if len(t.took) == 0 {
		return
	}
	slices.Sort(t.took)
	out := Time{Name: t.name, N: len(t.took), P50: ms(t.took[len(t.took)/2]), Max: ms(t.took[len(t.took)-1]), Bytes: t.bytes, Goal: t.goal}
	if s.copyRate > 0 {
		out.BoundMs = float64(t.bytes) / (s.copyRate * 1e6) * 1000
	}
	s.report.Times = append(s.report.Times, out)
}

func (s *size) time(name string) Time {
	for _, t := range s.report.Times {
		if t.Name == name {
			return t
		}
	}
	return Time{}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
