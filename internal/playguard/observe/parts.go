package observe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
)

// Container is one container of ours.
type Container struct {
	ID         string
	Name       string
	Service    string
	Playground model.PlaygroundID
	Digest     string    // of the service definition that it was made from
	State      string    // created, running, paused, restarting, removing, exited, dead
	Exit       int       // if it is not running
	Health     string    // starting, healthy, unhealthy; empty if it has no check
	Restart    string    // restart policy
	Started    time.Time // of its last run; zero if the runner does not say
	Finished   time.Time
	OneOff     bool // made by "run"
	Ports      []Port
}

// Port is one port of a container that Docker publishes on the host.
type Port struct {
	Inside string // such as 80/tcp
	IP     string // that it listens on
	Port   int
}

// Volume is one volume of ours.
type Volume struct {
	Name       string
	Playground model.PlaygroundID
}

// Op is an operation as the host's record of it says.
type Op struct {
	ID      string
	Kind    model.OpKind
	Epoch   uint64
	Running bool
	Lost    bool // its process is gone and it left no exit status
	Exit    int  // if neither
}

// Directory is a project's directory on the host.
type Directory struct {
	Exists    bool
	Path      string // resolved
	Marker    model.Marker
	HasMarker bool   // there is a marker and it is well formed
	Compose   string // SHA-256 of the compose file; empty if there is none
	Last      string // operation that succeeded last of up, stop and down; empty if unknown
}

// Dirt is whether a checkout holds work that exists nowhere else. A greater
// value outranks a smaller one.
type Dirt uint8

// Dirts.
const (
	Clean Dirt = iota
	DirtUnknown
	Dirty
)

func (d Dirt) String() string { return [...]string{"clean", "unknown", "dirty"}[d] }

// Checkout is one working copy.
type Checkout struct {
	Name string
	Dirt Dirt
	Why  string // if it is not clean
}

// fill reads the parts of a complete frame.
func (l *Look) fill(parts []Part) *fault {
	r := reader{look: l, byName: make(map[string]Part, len(parts))}
	for _, p := range parts {
		if _, twice := r.byName[p.Name]; twice {
			return malformed("part " + p.Name + " comes twice")
		}
		r.byName[p.Name] = p
	}
	l.projects = map[model.Project]*projectLook{}
	for _, step := range []func() *fault{
		r.readHost, r.readDaemon, r.readCompose, r.readContainers, r.readForeign, r.readVolumes, r.readOps, r.readProjects,
	} {
		if f := step(); f != nil {
			return f
		}
	}
	return nil
}

type reader struct {
	look   *Look
	byName map[string]Part
}

func (r *reader) project(p model.Project) *projectLook {
	if r.look.projects[p] == nil {
		r.look.projects[p] = &projectLook{}
	}
	return r.look.projects[p]
}

// part returns a part that must be there and must have succeeded; if it did
// not, otherwise is the reason unless status or text name a better one.
func (r *reader) part(name string, otherwise Reason) ([]byte, *fault) {
	p, ok := r.byName[name]
	if !ok {
		return nil, malformed("part " + name + " is missing")
	}
	if p.Status != 0 {
		return nil, &fault{commandTrouble(p.Status, string(p.Err), otherwise), false,
			fmt.Sprintf("%s: exit status %d: %s", name, p.Status, firstLine(p.Err))}
	}
	return p.Out, nil
}

// lines calls take for each line of a part. A line that take refuses, one that
// is too long, and a last line without its end spoil the part.
func lines(name string, out []byte, take func(line string) error) *fault {
	for len(out) > 0 {
		line, rest, ok := cutLine(out)
		if !ok || len(line) > MaxLine {
			return malformed("part " + name + " has a line without an end or one that is too long")
		}
		if err := take(line); err != nil {
			return malformed("part " + name + ": " + err.Error())
		}
		out = rest
	}
	return nil
}

// fields reads "key=value" lines. A key that comes twice is an error; keys
// that a later runner may add are ignored.
func fields(name string, out []byte) (map[string]string, *fault) {
	kv := map[string]string{}
	f := lines(name, out, func(line string) error {
		k, v, ok := strings.Cut(line, "=")
		if _, twice := kv[k]; !ok || twice || k == "" {
			return fmt.Errorf("line %.40q is not key=value, or the key comes twice", line)
		}
		kv[k] = v
		return nil
	})
	return kv, f
}

func (r *reader) readHost() *fault {
	out, f := r.part("host", ReasonParse)
	if f != nil {
		return f
	}
	kv, f := fields("host", out)
	if f != nil {
		return f
	}
	h := &r.look.host
	h.Identity.Installation = model.InstallationID(kv["installation"])
	h.Identity.MachineID = kv["machine_id"]
	h.Boot.BootID = kv["boot_id"]
	var clock, uptime, odd uint64
	for _, n := range []struct {
		key  string
		into *uint64
	}{{"clock", &clock}, {"uptime", &uptime}, {"epoch", &h.Epoch}, {"disk_free", &h.DiskFree}, {"odd_dirs", &odd}} {
		v, err := strconv.ParseUint(kv[n.key], 10, 63)
		if err != nil {
			return malformed("part host: " + n.key + " is not a number")
		}
		*n.into = v
	}
	if h.Boot.BootID == "" || clock == 0 || uptime > clock || odd > MaxParts {
		return malformed("part host: boot_id, clock, uptime or odd_dirs is missing or impossible")
	}
	h.Clock, h.Uptime, h.OddDirs = time.Unix(int64(clock), 0).UTC(), time.Duration(min(uptime, 1<<33))*time.Second, int(odd)
	return nil
}

func (r *reader) readDaemon() *fault {
	out, f := r.part("daemon", ReasonDaemon)
	if f != nil {
		return f
	}
	kv, f := fields("daemon", out)
	if f != nil {
		return f
	}
	h := &r.look.host
	h.Identity.DaemonID, h.Identity.DataRoot, h.Identity.Witness = kv["id"], kv["root"], kv["witness"]
	h.Docker, h.Storage = kv["version"], kv["storage"]
	if started := kv["started"]; started != "" {
		s, err := strconv.ParseUint(started, 10, 40)
		if err != nil {
			return malformed("part daemon: started is not a number")
		}
		h.Boot.DaemonStart = time.Unix(int64(s), 0).UTC()
	}
	return nil
}

func (r *reader) readCompose() *fault {
	out, f := r.part("compose", ReasonTooling)
	if f != nil {
		return f
	}
	kv, f := fields("compose", out)
	if f != nil {
		return f
	}
	c := Compose{kv["flavour"], kv["version"]}
	if c.Flavour != "v1" && c.Flavour != "v2" || c.Version == "" {
		return &fault{ReasonTooling, false, "no Compose that this version knows"}
	}
	if c.old() {
		return &fault{ReasonTooling, false, fmt.Sprintf("docker-compose %.20s is too old: it needs 1.%d or newer, or Compose v2", c.Version, leastV1)}
	}
	r.look.host.Compose = c
	return nil
}

// leastV1 is the first 1.x that reads files without a version.
const leastV1 = 27

func (c Compose) old() bool {
	var major, minor int
	n, _ := fmt.Sscanf(strings.TrimPrefix(c.Version, "v"), "%d.%d", &major, &minor) // another form is not judged
	return n == 2 && (major < 1 || major == 1 && minor < leastV1)
}

// ours reads the owner's labels. An object of another installation, or of a
// project that we could not have named, is not ours to see.
func (r *reader) ours(labels map[string]string) (model.Project, model.PlaygroundID, bool) {
	mine := r.look.host.Identity.Installation
	if mine == "" || model.InstallationID(labels[model.LabelInstallation]) != mine {
		return model.Project{}, "", false
	}
	p, err := model.ParseProject(labels["com.docker.compose.project"])
	if err != nil {
		return model.Project{}, "", false
	}
	return p, model.PlaygroundID(labels[model.LabelPlayground]), true
}

var containerStates = map[string]bool{
	"created": true, "running": true, "paused": true, "restarting": true, "removing": true, "exited": true, "dead": true,
}

func (r *reader) readContainers() *fault {
	p := r.byName["containers"]
	if p.Status != 0 && goneMeanwhile.Match(p.Err) {
		// A container went between the list and its inspection. The list is
		// not one; the next pass looks again.
		return &fault{ReasonParse, true, "containers: the list changed while it was read"}
	}
	out, f := r.part("containers", ReasonDaemon)
	if f != nil {
		return f
	}
	return lines("containers", out, func(line string) error {
		var j struct {
			ID, Name, State, Health, Restart string
			Exit                             int
			Started, Finished                time.Time
			Labels                           map[string]string
			Ports                            map[string][]struct{ HostIP, HostPort string }
		}
		if err := unmarshal(line, &j); err != nil {
			return err
		}
		if j.ID == "" || j.Name == "" || !containerStates[j.State] {
			return fmt.Errorf("a container without id or name, or in state %.20q", j.State)
		}
		project, playground, ok := r.ours(j.Labels)
		if !ok {
			return nil
		}
		l := r.project(project)
		l.containers = append(l.containers, Container{
			ID: j.ID, Name: strings.TrimPrefix(j.Name, "/"), Service: j.Labels["com.docker.compose.service"],
			Playground: playground, Digest: j.Labels[model.LabelDigest],
			State: j.State, Exit: j.Exit, Health: j.Health, Restart: j.Restart, Started: j.Started, Finished: j.Finished,
			OneOff: strings.EqualFold(j.Labels["com.docker.compose.oneoff"], "true"), Ports: published(j.Ports),
		})
		return nil
	})
}

// published sorts the ports that Docker says it publishes; of what is no port
// nothing is shown.
func published(all map[string][]struct{ HostIP, HostPort string }) (out []Port) {
	for _, inside := range slices.Sorted(maps.Keys(all)) {
		for _, b := range all[inside] {
			if n, err := strconv.ParseUint(b.HostPort, 10, 16); err == nil && n > 0 {
				out = append(out, Port{Inside: inside, IP: b.HostIP, Port: int(n)})
			}
		}
	}
	return out
}

func unmarshal(line string, into any) error {
	dec := json.NewDecoder(bytes.NewReader([]byte(line)))
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("a line that is not JSON of the right shape")
	}
	if dec.More() {
		return fmt.Errorf("a line with more than one value")
	}
	return nil
}

// readForeign takes "id project" lines: every container with a project name,
// and whose labels are not ours.
func (r *reader) readForeign() *fault {
	out, f := r.part("foreign", ReasonDaemon)
	if f != nil {
		return f
	}
	return lines("foreign", out, func(line string) error {
		id, name, ok := strings.Cut(line, " ")
		if !ok || id == "" {
			return fmt.Errorf("line %.40q is not \"id project\"", line)
		}
		if project, err := model.ParseProject(name); err == nil {
			l := r.project(project)
			l.foreign = append(l.foreign, id)
		}
		return nil
	})
}

func (r *reader) readVolumes() *fault {
	out, f := r.part("volumes", ReasonDaemon)
	if f != nil {
		return f
	}
	return lines("volumes", out, func(line string) error {
		var j struct {
			Name   string
			Labels map[string]string
		}
		if err := unmarshal(line, &j); err != nil {
			return err
		}
		if j.Name == "" {
			return fmt.Errorf("a volume without a name")
		}
		if project, playground, ok := r.ours(j.Labels); ok {
			l := r.project(project)
			l.volumes = append(l.volumes, Volume{Name: j.Name, Playground: playground})
		}
		return nil
	})
}
