package lifecycle

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lifecycle/uploads"
)

const maxStartupScript = 1 << 20

var imageName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,255}$`)

// plan is a create request after every check that needs no state: what will
// be stored and done, complete and immutable.
type plan struct {
	spec     fleet.Spec
	boot     fleet.BootOptions
	manifest manifest
}

// rules is what validation knows of the server.
type rules struct {
	limits   Limits
	defaults Defaults
	async    bool
	hostIDs  func(id string) bool
	seeds    bool // this server keeps snapshots
}

// validate checks a request in the order of inventory 2.5; the first failure
// wins. It reads nothing but its arguments.
func validate(req CreateRequest, r rules) (plan, error) {
	p := plan{spec: req.Spec, boot: req.Boot}
	// The server's own to set, never the caller's.
	p.spec.GPUUUIDs, p.spec.MIGInstanceUUIDs, p.spec.PinnedHostID, p.spec.Ancestors, p.spec.ResumeSeed = nil, nil, "", nil, false
	if f := req.Fork; f != nil {
		p.spec.Ancestors, p.spec.ResumeSeed = slices.Clone(f.Ancestors), f.Live
	}
	p.boot.TunnelConfig, p.boot.Expose = nil, slices.Clone(p.boot.Expose)
	for _, check := range []func() error{
		func() error { return checkTaskID(req.TaskID) },
		func() error { return p.sizes(r) },
		func() error { return p.kind(r) },
		func() error { return checkGPU(p.spec) },
		func() error { return checkLabels(p.spec.Labels) },
		func() error { return fleet.CheckTags(p.spec.Tags) },
		func() error { return checkPin(p.spec.HostID, r.hostIDs) },
		func() error { return fleet.CheckLimits(p.spec) },
		func() error { return fleet.CheckContinuation(p.spec) },
		func() error { return p.boot.Healthcheck.Validate() },
		func() error { return fleet.CheckExpose(p.boot.Expose) },
		func() error { return checkUnbuilt(p.spec, p.boot) },
		func() error { return p.startup(r) },
		func() error { return uploads.CheckFiles(p.boot.Files) },
		func() error { return p.parseManifest() },
		func() error { return uploads.CheckSecrets(p.boot.Secrets, p.manifest.secretNames()) },
		func() error { return checkSeed(&req, r) },
	} {
		if err := check(); err != nil {
			return plan{}, err
		}
	}
	p.spec.Labels = maps.Clone(p.spec.Labels)
	p.boot.Secrets = maps.Clone(p.boot.Secrets)
	p.boot.Files = maps.Clone(p.boot.Files)
	return p, nil
}

// CheckSpec fills in what a spec leaves out, and refuses what a create would
// refuse of it whatever hosts there are. What this server cannot make yet passes.
func (s *Service) CheckSpec(spec fleet.Spec) (fleet.Spec, error) {
	p, r := plan{spec: spec}, rules{limits: s.core.cfg.Limits, defaults: s.core.cfg.Defaults}
	if err := p.sizes(r); err != nil {
		return spec, err
	}
	if err := p.kind(r); err != nil {
		return spec, err
	}
	return p.spec, checkLabels(spec.Labels)
}

func checkTaskID(id string) error {
	if id == "" {
		return nil
	}
	return fleet.ValidateTaskID(id)
}

type sizes struct{ cpus, ramMB, storageGB int }

func (s sizes) check(l Limits) error {
	for _, f := range []struct {
		field, unit  string
		v, low, high int
	}{
		{"spec.cpus", "", s.cpus, 1, l.MaxCPUs},
		{"spec.ram_mb", " MiB", s.ramMB, l.MinRamMB, l.MaxRamMB},
		{"spec.storage_gb", " GiB", s.storageGB, 1, l.MaxStorageGB},
	} {
		if f.v < f.low || f.v > f.high {
			return fleet.Invalid(f.field, fmt.Sprintf("%d to %d%s", f.low, f.high, f.unit),
				"ask for a size within the limit, or leave it out for the server's default", "is %d", f.v)
		}
	}
	return nil
}

func (p *plan) sizes(r rules) error {
	orDefault(&p.spec.CPUs, r.defaults.CPUs)
	orDefault(&p.spec.RamMB, r.defaults.RamMB)
	orDefault(&p.spec.StorageGB, r.defaults.StorageGB)
	return sizes{p.spec.CPUs, p.spec.RamMB, p.spec.StorageGB}.check(r.limits)
}

// kind checks what says which sort of machine it is to be.
func (p *plan) kind(r rules) error {
	p.spec.Arch = fleet.NormalizeArch(p.spec.Arch)
	switch p.spec.Arch {
	case "", fleet.ArchAMD64, fleet.ArchARM64:
	default:
		return fleet.Invalid("spec.arch", "amd64, arm64 or empty", "name an architecture that hosts have, or leave it out for any",
			"%.40q is not known", p.spec.Arch)
	}
	if p.spec.Region != "" && !fleet.ValidLabel(p.spec.Region) {
		return fleet.Invalid("spec.region", "1 to 63 letters, digits, dots, underscores or dashes", "use a region that a host was registered with",
			"%.80q is not allowed", p.spec.Region)
	}
	if p.spec.SeedSnapshotID == "" {
		orDefault(&p.spec.Image, r.defaults.Image)
	}
	if p.spec.Image != "" && !imageName.MatchString(p.spec.Image) {
		return fleet.Invalid("spec.image", imageName.String(), "name an image of the host, such as minimal", "%.80q is not allowed", p.spec.Image)
	}
	return nil
}

func checkGPU(s fleet.Spec) error {
	if s.GPUs < 0 {
		return fleet.Invalid("spec.gpus", "0 or more", "leave it out for a machine without GPU", "is %d", s.GPUs)
	}
	for _, f := range []struct {
		field string
		set   bool
	}{
		{"spec.gpus", s.GPUs > 0},
		{"spec.gpu_kind", s.GPUKind != ""},
		{"spec.gpu_profile", s.GPUProfile != ""},
	} {
		if f.set {
			return unbuilt(f.field)
		}
	}
	return nil
}

func checkLabels(labels map[string]string) error {
	return fleet.LabelRule{
		Field: "spec.labels", Noun: "labels", Most: fleet.MaxLabels,
		Fewer: "require fewer labels", Remedy: "use the labels that hosts were registered with",
	}.Check(labels)
}

func checkPin(id string, known func(string) bool) error {
	if id == "" || known(id) {
		return nil
	}
	return fleet.Errorf(fleet.CodeNotFound, "spec.host_id %.80q: %w", id, fleet.ErrHostNotFound).
		With(fleet.DetailScope, "spec.host_id").With(fleet.DetailRemedy, "pin to a registered host (fuse host ls), or leave the pin out")
}

// checkUnbuilt refuses what this server knows but cannot do yet: ignoring it
// would give the caller another machine than asked for (semantics 3).
func checkUnbuilt(s fleet.Spec, b fleet.BootOptions) error {
	for _, f := range []struct {
		field string
		set   bool
	}{
		{"desktop", b.Desktop != nil},
		{"egress", !s.Egress.Direct() || s.Egress.Provider != "" || s.Egress.Protocol != ""},
		{"hitl", s.Hitl != nil},
	} {
		if f.set {
			return unbuilt(f.field)
		}
	}
	return nil
}

func checkSeed(req *CreateRequest, r rules) error {
	switch {
	case req.Spec.SeedSnapshotID == "":
		return nil
	case !r.seeds:
		return unbuilt("seed_snapshot_id")
	case req.Fork == nil && req.Spec.Image != "":
		return fleet.Invalid("seed_snapshot_id", "no image beside it", "leave out spec.image: the snapshot holds the disk", "cannot come with an image")
	}
	return nil
}

func unbuilt(field string) error {
	return fleet.Errorf(fleet.CodeUnimplemented, "%s is not supported by this server", field).
		With(fleet.DetailScope, field).With(fleet.DetailRemedy, "leave it out")
}

func (p *plan) startup(r rules) error {
	const field = "startup_script_timeout_seconds"
	ceiling, remedy := r.limits.StartupCeiling, "do the long part in a service or an exec, or create with Prefer: respond-async"
	if r.async {
		ceiling, remedy = r.limits.AsyncStartupCeiling, "do the long part in a service or an exec"
	}
	if len(p.boot.StartupScript) > maxStartupScript {
		return fleet.Invalid("startup_script", fmt.Sprintf("%d bytes", maxStartupScript), "send a shorter script", "is %d bytes", len(p.boot.StartupScript))
	}
	if strings.ContainsRune(p.boot.StartupScript, 0) {
		return fleet.Invalid("startup_script", "text", "send a script without NUL bytes", "has a NUL byte")
	}
	switch t := p.boot.StartupScriptTimeout; {
	case t < 0:
		return fleet.Invalid(field, "0 or more", "0 means the server's default", "is %d", int64(t/time.Second))
	case t > ceiling:
		return fleet.Errorf(fleet.CodeInvalidArgument, "%s is %d: %w", field, int64(t/time.Second), fleet.ErrStartupScriptTimeoutTooLarge).
			With(fleet.DetailScope, field).With(fleet.DetailLimit, strconv.FormatInt(int64(ceiling/time.Second), 10)).With(fleet.DetailRemedy, remedy)
	}
	orDefault(&p.boot.StartupScriptTimeout, r.limits.StartupTimeout)
	return nil
}
