// Package snapshots measures what captures give on a running server, over its
// API: creates, forks and how long a machine stands still, beside a bare machine,
// a container and the physical bound. It asserts nothing: it prints what it saw.
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

// Shape is a machine to measure.
type Shape struct {
	RAMMB int
	Accel string // of the host that the server has: kvm or tcg
}

// Beside is something else that starts, measured in the same run. Why says why
// it cannot be, if it cannot.
type Beside struct {
	Name string
	Why  string
	Once func(ctx context.Context, s Shape) (time.Duration, error)
}

// Config is one measurement.
type Config struct {
	API    client.Snapshots
	Image  string
	Sizes  []int // of guest memory in MB
	Times  int   // that each is repeated
	Stops  int   // live snapshots of the source, and of a fork
	Forks  int   // at once
	Boots  int   // at once, to compare their memory; 0: none
	Beside []Beside
	// Progress is told what is under way.
	Progress func(string)
}

// Report is what was seen.
type Report struct {
	Machine string `json:"machine"`
	Host    string `json:"host"`
	Image   string `json:"image"`
	// CopyMBs is how many megabytes a core copies in a second, from memory to
	// memory: the physical bound.
	CopyMBs float64      `json:"copy_mb_per_s"`
	Sizes   []SizeReport `json:"sizes"`
}

// SizeReport is what was seen of machines with one size of memory.
type SizeReport struct {
	RAMMB  int      `json:"ram_mb"`
	Times  []Time   `json:"times"`
	Memory []Memory `json:"memory"`
	Ratios []Ratio  `json:"ratios"`
	// Notes are what could not be measured, and why.
	Notes []string `json:"notes,omitempty"`
}

// Time is how long one thing took.
type Time struct {
	Name string  `json:"name"`
	N    int     `json:"n"`
	P50  float64 `json:"p50_ms"`
	Max  float64 `json:"max_ms"`
	// Bytes had to be there in the end; BoundMs is what copying as many takes.
	Bytes   int64   `json:"bytes,omitempty"`
	BoundMs float64 `json:"bound_ms,omitempty"`
	Goal    string  `json:"goal,omitempty"`
}

// Memory is what some machines take of the host's, each page shared by its
// users (Pss): what is their guests' and what is the processes'.
type Memory struct {
	Name     string  `json:"name"`
	Machines int     `json:"machines"`
	GuestMB  float64 `json:"guest_mb"`
	Process  float64 `json:"process_mb"`
}

// Ratio is one figure over another.
type Ratio struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Goal  string  `json:"goal,omitempty"`
}

// Names of what is measured, and goals.
const (
	nameCold        = "cold create"
	nameGolden      = "golden create"
	nameTake        = "live snapshot"
	nameStop        = "stop of the source"
	nameFreeze      = "freeze of the source's processes"
	nameForkTake    = "live snapshot of a fork"
	nameForkStop    = "stop of a fork"
	nameForkFreeze  = "freeze of a fork's processes"
	nameBoots       = "boots"
	nameForks       = "forks"
	goalSourceStop  = "30 ms"
	goalForkStop    = "80 ms"
	goalGolden      = "0.25"
	goalForksMemory = "0.20"
)

// cleanLimit bounds what is done at the end for one thing that was made.
const cleanLimit = 2 * time.Minute

// Run measures each size in turn.
func Run(ctx context.Context, c Config) (Report, error) {
	r := Report{Machine: bench.Machine(), Image: c.Image, CopyMBs: copyRate()}
	hosts, err := c.API.API.Hosts(ctx, gen.ListHostsParams{})
	if err != nil {
		return r, err
	}
	if len(hosts.Hosts) != 1 {
		return r, fmt.Errorf("the server has %d hosts: measure one that has this machine alone", len(hosts.Hosts))
	}
	h := hosts.Hosts[0]
	r.Host = fmt.Sprintf("%s %s, %s", h.Driver, h.DriverVersion, h.Accelerator)
	for _, mb := range c.Sizes {
		s := &size{Config: c, shape: Shape{RAMMB: mb, Accel: h.Accelerator}, copyRate: r.CopyMBs, tag: fmt.Sprintf("bench-%d-%d", time.Now().UnixMilli(), mb)}
		s.report.RAMMB = mb
		if err := errors.Join(s.run(ctx), s.clean(context.WithoutCancel(ctx))); err != nil {
			return r, fmt.Errorf("with %d MB: %w", mb, err)
		}
		r.Sizes = append(r.Sizes, s.report)
	}
	return r, nil
}

// size is the measurement of one size of memory.
type size struct {
	Config
	shape    Shape
	copyRate float64
	tag      string
	made     int
	envs     []gen.Environment // that are there, in the order of their creation
	snaps    []string
	report   SizeReport
}

func (s *size) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{s.beside, s.creates, s.captures, s.forks, s.boots} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	s.ratios()
	return nil
}

func (s *size) beside(ctx context.Context) error {
	for _, b := range s.Beside {
		if b.Why != "" {
			s.note("%s: %s", b.Name, b.Why)
			continue
		}
		s.say("%s", b.Name)
		t := times{name: b.Name}
		for range s.Config.Times {
			d, err := b.Once(ctx, s.shape)
			if err != nil {
				return fmt.Errorf("%s: %w", b.Name, err)
			}
			t.add(d)
		}
		s.add(t)
	}
	return nil
}

// creates measures machines that boot and such that go on from a golden capture,
// each until its first command has ended.
func (s *size) creates(ctx context.Context) error {
	cold, golden := times{name: nameCold}, times{name: nameGolden, goal: goalGolden + " of a cold one"}
	s.say("%s", nameCold)
	for range s.Config.Times {
		begun := time.Now()
		env, err := s.create(ctx, "off")
		if err != nil {
			return err
		}
		cold.add(time.Since(begun))
		cold.bytes = s.guestBytes(env)
		if err := s.destroy(ctx, env); err != nil {
			return err
		}
	}
	s.add(cold)
	s.say("%s", nameGolden)
	within := time.Now().Add(goldenLimit)
	for len(golden.took) < s.Config.Times {
		begun := time.Now()
		env, err := s.create(ctx, "auto")
		if err != nil {
			return err
		}
		took := time.Since(begun)
		if env.Boot != nil && env.Boot.Mode == "golden" {
			golden.add(took)
			golden.bytes = s.guestBytes(env)
		}
		if err := s.destroy(ctx, env); err != nil {
			return err
		}
		if len(golden.took) == 0 && time.Now().After(within) {
			s.note("%s: the host made no golden capture within %s", nameGolden, goldenLimit)
			return nil
		}
	}
	s.add(golden)
	return nil
}

// goldenLimit is how long the making of a golden capture is waited for.
const goldenLimit = 5 * time.Minute

// captures takes live snapshots of a machine a quarter of whose memory is in use.
func (s *size) captures(ctx context.Context) error {
	s.say("%s", nameTake)
	env, err := s.create(ctx, "off")
	if err != nil {
		return err
	}
	fill := fmt.Sprintf("head -c 1048576 /dev/urandom > /dev/shm/one; for i in $(seq %d); do cat /dev/shm/one; done > /dev/shm/all", s.shape.RAMMB/4)
	if err := s.exec(ctx, env, "sh", "-c", fill); err != nil {
		return err
	}
	return s.snapshots(ctx, env, [3]times{{name: nameTake}, {name: nameStop, goal: goalSourceStop}, {name: nameFreeze}})
}

// snapshots takes some of one machine: how long each took in all, its machine
// stood still, and its processes.
func (s *size) snapshots(ctx context.Context, env gen.Environment, t [3]times) error {
	for range s.Stops {
		snap, err := s.API.Take(ctx, env.ID, gen.CreateSnapshot{Live: true})
		if err != nil {
			return err
		}
		s.snaps = append(s.snaps, snap.ID)
		t[0].add(duration(snap.TookMs))
		t[0].bytes = snap.SizeBytes
		t[1].add(duration(snap.StopMs))
		t[2].add(duration(snap.FreezeMs))
		if err := s.exec(ctx, env, "true"); err != nil {
			return fmt.Errorf("the source after a snapshot: %w", err)
		}
		if err := s.remove(ctx, snap.ID); err != nil {
			return err
		}
	}
	for _, each := range t {
		s.add(each)
	}
	return nil
}

// forks makes one fork of the machine at a time and then many at once, each up
// to its first command, what they were captured for included.
func (s *size) forks(ctx context.Context) error {
	source := s.envs[len(s.envs)-1]
	one := times{name: "live fork of 1"}
	s.say("%s", one.name)
	var last gen.Environment
	for i := range s.Config.Times {
		begun := time.Now()
		forks, err := s.fork(ctx, source, 1)
		if err != nil {
			return err
		}
		one.add(time.Since(begun))
		last = forks[0]
		one.bytes = s.guestBytes(last)
		if i < s.Config.Times-1 {
			if err := s.destroy(ctx, last); err != nil {
				return err
			}
		}
	}
	s.add(one)
	s.say("%s", nameForkTake)
	if err := s.snapshots(ctx, last, [3]times{{name: nameForkTake}, {name: nameForkStop, goal: goalForkStop}, {name: nameForkFreeze}}); err != nil {
		return err
	}
	if err := s.destroy(ctx, last); err != nil {
		return err
	}
	many := times{name: fmt.Sprintf("live fork of %d", s.Forks)}
	s.say("%s", many.name)
	begun := time.Now()
	forks, err := s.fork(ctx, source, s.Forks)
	if err != nil {
		return err
	}
	many.add(time.Since(begun))
	if len(forks) < s.Forks {
		many.name = fmt.Sprintf("live fork of %d", len(forks))
	}
	if m, ok := s.memory(nameForks, forks); ok {
		many.bytes = int64(m.GuestMB * (1 << 20))
	}
	s.add(many)
	return s.destroy(ctx, append(forks, source)...)
}

// boots boots as many machines as were forked, for their memory.
func (s *size) boots(ctx context.Context) error {
	if s.Boots < 1 {
		return nil
	}
	t := times{name: fmt.Sprintf("cold create of %d", s.Boots)}
	s.say("%s", t.name)
	envs := make([]gen.Environment, s.Boots)
	begun := time.Now()
	ids := s.ids(s.Boots)
	_, err := bench.Each(ctx, s.Boots, s.Boots, func(ctx context.Context, i int) (err error) {
		envs[i], err = s.createAs(ctx, ids[i], "off")
		return err
	})
	t.add(time.Since(begun))
	envs = slices.DeleteFunc(envs, func(e gen.Environment) bool { return e.ID == "" })
	s.envs = append(s.envs, envs...)
	if err != nil {
		s.note("%s: %v", t.name, err)
		return nil
	}
	if m, ok := s.memory(nameBoots, envs); ok {
		t.bytes = int64(m.GuestMB * (1 << 20))
	}
	s.add(t)
	return nil
}

// ratios are those that have goals.
func (s *size) ratios() {
	cold, golden := s.time(nameCold), s.time(nameGolden)
	if cold.P50 > 0 && golden.P50 > 0 {
		s.report.Ratios = append(s.report.Ratios, Ratio{"golden create over cold create, p50", golden.P50 / cold.P50, goalGolden})
	}
	var boots, forks Memory
	for _, m := range s.report.Memory {
		switch m.Name {
		case nameBoots:
			boots = m
		case nameForks:
			forks = m
		}
	}
	if boots.Machines == 0 || forks.Machines == 0 {
		return
	}
	each := func(m Memory, mb float64) float64 { return mb / float64(m.Machines) }
	s.report.Ratios = append(s.report.Ratios,
		Ratio{"guest memory of a fork over that of a boot, Pss", each(forks, forks.GuestMB) / each(boots, boots.GuestMB), goalForksMemory},
		Ratio{"the same with the processes'", each(forks, forks.GuestMB+forks.Process) / each(boots, boots.GuestMB+boots.Process), ""})
}
