package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/procs"
	"github.com/fusevm/fuse/internal/hostd/ports"
)

// Steps that can be slowed down and made to fail.
var steps = []string{"probe", "create", "boot", "adopt", "remove", "exec", "write", "drain", "sweep", "snapshot", "fork", "restore", "pause", "resume"}

// Range is a span of durations; one is drawn evenly each time.
type Range struct{ Min, Max time.Duration }

func (r Range) draw(rng *rand.Rand) time.Duration {
	if r.Max <= r.Min {
		return r.Min
	}
	return r.Min + time.Duration(rng.Int64N(int64(r.Max-r.Min)+1))
}

// Failure says how often a step fails: the first Times times, and beyond
// them with probability Rate.
type Failure struct {
	Times int
	Rate  float64
}

// Options shape a simulated host. The zero value is a big, fast host that
// never fails.
type Options struct {
	// Processes, if set, runs the processes of calls that are passed on to a
	// guest, in place of the built-in commands: for tests, on this machine.
	Processes procs.Runner
	// Ports are the numbers of published ports; zero: the default range.
	Ports ports.Range
	// Delay of each step; see the steps above.
	Delay map[string]Range
	Fail  map[string]Failure
	// Capacity of the host; zero fields have large defaults.
	VMs, CPUs, RamMB, StorageGB int
	// HugePages and OverheadMB of each VM are none unless set.
	HugePages, OverheadMB int
	// Images that can be booted; empty: minimal.
	Images []string
	// ObjectDir, if set, gets a file per VM that stands for the objects a
	// real driver makes outside the VM's directory.
	ObjectDir string
	// Seed of the draws; zero takes a random one.
	Seed uint64
}

// Defaults of a simulated host: large enough for a fleet's worth of VMs.
const (
	defaultVMs       = 10000
	defaultCPUs      = 40000
	defaultRAM       = 40 << 20 // MB
	defaultStorageGB = 1 << 20
)

func (o Options) withDefaults() Options {
	def := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	def(&o.VMs, defaultVMs)
	def(&o.CPUs, defaultCPUs)
	def(&o.RamMB, defaultRAM)
	def(&o.StorageGB, defaultStorageGB)
	if len(o.Images) == 0 {
		o.Images = []string{"minimal"}
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	return o
}

// ParseOptions reads a flag's text, a comma-separated list:
//
//	boot=200ms..400ms    delay of a step: a duration, or two with .. between
//	fail=create:0.01     a step fails with this probability …
//	fail=create:once     … or the first time (or a number of times: x3)
//	vms=10000            capacity: vms, cpus, ram_mb, storage_gb, huge_pages
//	overhead_mb=256      memory that the process of each VM takes besides
//	image=debian         an image that can be booted; repeatable
//	seed=7               of the draws
func ParseOptions(text string) (Options, error) {
	o := Options{Delay: map[string]Range{}, Fail: map[string]Failure{}}
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		if err := o.parse(item); err != nil {
			return Options{}, fleet.Errorf(fleet.CodeInvalidArgument, "sim option %.60q: %w", item, err).
				With(fleet.DetailRemedy, "for example boot=200ms..400ms,fail=create:0.01,vms=10000")
		}
	}
	return o, nil
}

func (o *Options) parse(item string) error {
	key, value, ok := strings.Cut(item, "=")
	if !ok {
		return fmt.Errorf("it is not key=value")
	}
	ints := map[string]*int{"vms": &o.VMs, "cpus": &o.CPUs, "ram_mb": &o.RamMB, "storage_gb": &o.StorageGB, "huge_pages": &o.HugePages, "overhead_mb": &o.OverheadMB}
	switch {
	case ints[key] != nil:
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is not a positive number", value)
		}
		*ints[key] = n
		return nil
	case key == "image":
		o.Images = append(o.Images, value)
		return nil
	case key == "seed":
		n, err := strconv.ParseUint(value, 10, 64)
		o.Seed = n
		return err
	case key == "fail":
		return o.parseFail(value)
	case slices.Contains(steps, key):
		r, err := parseRange(value)
		o.Delay[key] = r
		return err
	}
	return fmt.Errorf("unknown; the steps are %s", strings.Join(steps, ", "))
}

func (o *Options) parseFail(value string) error {
	step, how, _ := strings.Cut(value, ":")
	if !slices.Contains(steps, step) {
		return fmt.Errorf("%q is no step; the steps are %s", step, strings.Join(steps, ", "))
	}
	f := o.Fail[step]
	if how == "once" {
		f.Times = 1
	} else if n, ok := strings.CutPrefix(how, "x"); ok {
		times, err := strconv.Atoi(n)
		if err != nil || times < 1 {
			return fmt.Errorf("%q is not a number of times", how)
		}
		f.Times = times
	} else {
		rate, err := strconv.ParseFloat(how, 64)
		if err != nil || !(rate >= 0 && rate <= 1) {
			return fmt.Errorf("%q is neither a probability nor once", how)
		}
		f.Rate = rate
	}
	o.Fail[step] = f
	return nil
}

func parseRange(value string) (Range, error) {
	from, to, two := strings.Cut(value, "..")
	if !two {
		to = from
	}
	a, err := time.ParseDuration(from)
	if err != nil {
		return Range{}, err
	}
	b, err := time.ParseDuration(to)
	if err != nil {
		return Range{}, err
	}
	if a < 0 || b < a {
		return Range{}, fmt.Errorf("the durations do not rise from zero")
	}
	return Range{a, b}, nil
}
