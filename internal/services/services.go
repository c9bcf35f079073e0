// Package services is what a manifest says of an environment's services: their
// commands, what they wait for and how they are started again. The server
// refuses with it at create what the guest could not run, and the guest runs
// by it.
package services

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Limits of a manifest's services.
const (
	Max          = 64 // services
	maxWords     = 256
	maxCommand   = 64 << 10         // bytes of a command with its environment
	MaxStopGrace = 40 * time.Second // a drain as a whole has a minute
	maxDuration  = 24 * time.Hour
)

// DefaultStopGrace is how long a service has to end once it is told to.
const DefaultStopGrace = 10 * time.Second

// Policy says when a service that has ended is started again.
type Policy string

// The policies. What a drain stopped stays stopped under all of them, so
// "unless-stopped" means the same as "always".
const (
	RestartNo            Policy = "no"
	RestartOnFailure     Policy = "on-failure"
	RestartAlways        Policy = "always"
	RestartUnlessStopped Policy = "unless-stopped"
)

// Condition is what a dependency has to be before its dependent starts.
type Condition string

// The conditions.
const (
	Started Condition = "started" // it runs
	Healthy Condition = "healthy" // its healthcheck passes
)

// Value is a value in clear or the name of a secret.
type Value struct {
	Value  *string `json:"value"`
	Secret string  `json:"secret"`
}

// Env are variables by name.
type Env map[string]Value

// Service is one service, checked.
type Service struct {
	Name        string
	Image       string   // empty: it runs in the environment's own root
	Command     []string // empty: the image's own program
	Env         Env
	User        string
	Workdir     string
	Ports       []int
	Restart     Policy
	MaxRestarts int // in a row; zero: no end to them
	DependsOn   map[string]Condition
	Probe       *fleet.HealthcheckSpec
	StopGrace   time.Duration
}

// document is a service as it is written.
type document struct {
	Image       string       `json:"image"`
	Command     []string     `json:"command"`
	Env         Env          `json:"env"`
	User        string       `json:"user"`
	Workdir     string       `json:"workdir"`
	Ports       []int        `json:"ports"`
	Restart     Policy       `json:"restart"`
	MaxRestarts int          `json:"max_restarts"`
	DependsOn   dependencies `json:"depends_on"`
	Healthcheck *probe       `json:"healthcheck"`
	StopGrace   string       `json:"stop_grace"`
}

// dependencies are names, which have to be started, or names with conditions.
type dependencies map[string]Condition

// UnmarshalJSON takes both forms.
func (d *dependencies) UnmarshalJSON(doc []byte) error {
	*d = dependencies{}
	var names []string
	if json.Unmarshal(doc, &names) == nil {
		for _, n := range names {
			(*d)[n] = Started
		}
		return nil
	}
	var with map[string]struct {
		Condition Condition `json:"condition"`
	}
	if err := json.Unmarshal(doc, &with); err != nil {
		return fmt.Errorf("depends_on is neither a list of names nor names with conditions: %w", err)
	}
	for n, c := range with {
		(*d)[n] = cmp.Or(Condition(strings.TrimPrefix(string(c.Condition), "service_")), Started)
	}
	return nil
}

type probe struct {
	Test        []string `json:"test"`
	Interval    string   `json:"interval"`
	Timeout     string   `json:"timeout"`
	Retries     int      `json:"retries"`
	StartPeriod string   `json:"start_period"`
}

// Field is where services stand, for errors.
const Field = "manifest_inline"

var (
	// imageName is a name of a host's image or a reference; whoever resolves it
	// says what is wrong with it.
	imageName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,255}$`)

	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	nameIs  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$`)
)

// Parse reads and checks the services of a manifest and returns them in the
// order of their starts: each after all that it depends on, else by name.
func Parse(docs map[string]json.RawMessage) ([]Service, error) {
	if len(docs) > Max {
		return nil, fleet.Invalid(Field, fmt.Sprintf("%d services", Max), "put several programs into one service", "has %d services", len(docs))
	}
	all := map[string]Service{}
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		s, err := parse(name, docs[name])
		if err != nil {
			return nil, err
		}
		all[name] = s
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := checkDependencies(all[name], all); err != nil {
			return nil, err
		}
	}
	return order(all)
}

// Images are the images that services bring along, each once. Each is a disk of
// the machine, so there cannot be many.
func Images(list []Service) ([]string, error) {
	names := map[string]bool{}
	for _, s := range list {
		if s.Image != "" {
			names[s.Image] = true
		}
	}
	if len(names) > fleet.MaxServiceImages {
		return nil, fleet.Invalid(Field, fmt.Sprintf("%d different images", fleet.MaxServiceImages), "let services share images, or run some in the environment's own", "has services with %d", len(names))
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// at names a field of a service in an error.
func at(name, field string) string { return fmt.Sprintf("services.%.40s.%s", name, field) }

func parse(name string, doc json.RawMessage) (Service, error) {
	if !nameIs.MatchString(name) {
		return Service{}, fleet.Invalid(Field, nameIs.String(), "rename the service", "has a service named %.80q", name)
	}
	var d document
	if err := json.Unmarshal(doc, &d); err != nil {
		return Service{}, fleet.Errorf(fleet.CodeInvalidArgument, "%s: services.%s is not a service: %w", Field, name, err).With(fleet.DetailScope, Field)
	}
	s := Service{
		Name: name, Image: d.Image, Command: d.Command, Env: d.Env, User: d.User, Workdir: d.Workdir, Ports: d.Ports,
		Restart: cmp.Or(d.Restart, RestartNo), MaxRestarts: d.MaxRestarts, DependsOn: d.DependsOn,
	}
	if err := s.check(); err != nil {
		return s, err
	}
	var err error
	if s.StopGrace, err = duration(at(name, "stop_grace"), d.StopGrace, MaxStopGrace); err != nil {
		return s, err
	}
	s.StopGrace = cmp.Or(s.StopGrace, DefaultStopGrace)
	if d.Healthcheck != nil {
		s.Probe, err = d.Healthcheck.spec(name)
	}
	return s, err
}

func (s Service) check() error {
	refuse := func(field, limit, remedy, format string, args ...any) error {
		return fleet.Invalid(Field, limit, remedy, at(s.Name, field)+" "+format, args...)
	}
	size := 0
	for i, w := range s.Command {
		size += len(w)
		if strings.ContainsRune(w, 0) || i == 0 && w == "" {
			return refuse("command", "text", "name a program", "has an empty program or a NUL byte")
		}
	}
	switch {
	case s.Image != "" && !imageName.MatchString(s.Image):
		return refuse("image", imageName.String(), "name an image of the host, or a reference such as docker.io/library/redis:7", "is %.80q", s.Image)
	case len(s.Command) > maxWords || size > maxCommand:
		return refuse("command", fmt.Sprintf("%d words, %d bytes", maxWords, maxCommand), "put it into a script", "is too long")
	case !slices.Contains([]Policy{RestartNo, RestartOnFailure, RestartAlways, RestartUnlessStopped}, s.Restart):
		return refuse("restart", "no, on-failure, always or unless-stopped", "use one of these", "is %.40q", s.Restart)
	case s.MaxRestarts < 0:
		return refuse("max_restarts", "0 or more", "leave it out for no limit", "is %d", s.MaxRestarts)
	case s.Workdir != "" && (!path.IsAbs(s.Workdir) || path.Clean(s.Workdir) != s.Workdir || strings.ContainsRune(s.Workdir, 0)):
		return refuse("workdir", "an absolute, clean path", "leave it out for the image's", "is %.120q", s.Workdir)
	case len(s.User) > 128 || strings.ContainsAny(s.User, "\x00\n"):
		return refuse("user", "a name, a uid, or either with a group", "leave it out for the image's", "is %.80q", s.User)
	}
	for _, p := range s.Ports {
		if p < 1 || p > 65535 {
			return refuse("ports", "1 to 65535", "correct the port", "has %d", p)
		}
	}
	return s.Env.Check(at(s.Name, "env"))
}

// Check refuses names and values that no environment can hold; where says
// whose they are.
func (e Env) Check(where string) error {
	for _, k := range slices.Sorted(maps.Keys(e)) {
		v := e[k]
		switch {
		case !envName.MatchString(k):
			return fleet.Invalid(Field, envName.String(), "rename the variable", "has the variable %.80q in %s", k, where)
		case (v.Value == nil) == (v.Secret == ""):
			return fleet.Invalid(Field, "exactly one of value and secret", "give the variable a value or the name of a secret", "has the variable %.80q in %s with both or neither", k, where)
		case v.Value != nil && strings.ContainsRune(*v.Value, 0):
			return fleet.Invalid(Field, "text", "take the NUL byte out", "has the variable %.80q in %s with a NUL byte", k, where)
		}
	}
	return nil
}

// Resolve puts secrets in the place of their names. One that is not there
// gives an empty value.
func (e Env) Resolve(secrets map[string]string) map[string]string {
	out := make(map[string]string, len(e))
	for k, v := range e {
		if out[k] = secrets[v.Secret]; v.Value != nil {
			out[k] = *v.Value
		}
	}
	return out
}

// Lines are the variables as KEY='value' that a shell can source; none of none.
func (e Env) Lines(secrets map[string]string) []byte {
	var b []byte
	vars := e.Resolve(secrets)
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		b = append(b, k+"="+Quote(vars[k])+"\n"...)
	}
	return b
}

// Quote makes one word of s for a POSIX shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Machine reads what a manifest that was checked says of the machine's own
// variables, and which secrets it needs in all.
func Machine(manifest []byte) (env Env, wanted []string, err error) {
	var m struct {
		Machine struct {
			Env Env `json:"env"`
		} `json:"machine"`
		Services map[string]json.RawMessage `json:"services"`
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, nil, fleet.Errorf(fleet.CodeInternal, "the manifest cannot be read any more")
	}
	list, err := Parse(m.Services)
	if err != nil {
		return nil, nil, err
	}
	names := map[string]bool{}
	m.Machine.Env.Secrets(names)
	for _, s := range list {
		s.Env.Secrets(names)
	}
	return m.Machine.Env, slices.Sorted(maps.Keys(names)), nil
}

// Secrets adds the names of the secrets that e needs to names.
func (e Env) Secrets(names map[string]bool) {
	for _, v := range e {
		if v.Secret != "" {
			names[v.Secret] = true
		}
	}
}

// spec makes a probe of the written form: "CMD" and "CMD-SHELL" go before a
// command as in Compose, "NONE" alone means no probe.
func (p probe) spec(name string) (*fleet.HealthcheckSpec, error) {
	argv := p.Test
	if len(argv) == 1 && argv[0] == "NONE" {
		return nil, nil //nolint:nilnil // there is none
	}
	if len(argv) > 0 && argv[0] == "CMD" {
		argv = argv[1:]
	} else if len(argv) == 2 && argv[0] == "CMD-SHELL" {
		argv = []string{"/bin/sh", "-c", argv[1]}
	}
	where := at(name, "healthcheck")
	if len(argv) == 0 || argv[0] == "" || len(argv) > maxWords || p.Retries < 0 {
		return nil, fleet.Invalid(Field, "a test of at least one word, retries of 0 or more", `use "test":["CMD","program"]`, "%s cannot be run", where)
	}
	out := &fleet.HealthcheckSpec{Exec: argv, Retries: p.Retries}
	for _, f := range []struct {
		name, text string
		to         *int64
	}{{"interval", p.Interval, &out.IntervalSeconds}, {"timeout", p.Timeout, &out.TimeoutSeconds}, {"start_period", p.StartPeriod, &out.StartPeriodSeconds}} {
		d, err := duration(where+"."+f.name, f.text, maxDuration)
		if err != nil {
			return nil, err
		}
		*f.to = int64((d + time.Second - 1) / time.Second)
	}
	if out.IntervalSeconds > 0 && out.TimeoutSeconds > out.IntervalSeconds {
		return nil, fleet.Invalid(Field, "the interval", "lower the timeout", "%s.timeout is longer than the interval", where)
	}
	return out, nil
}

func duration(where, text string, most time.Duration) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > most {
		return 0, fleet.Invalid(Field, "a positive duration of at most "+most.String(), `write it as "10s"`, "%s is %.40q", where, text)
	}
	return d, nil
}
