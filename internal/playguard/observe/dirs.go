package observe

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/playguard/model"
)

// readOps takes "id project kind epoch state" lines; state is running, lost
// or the exit status.
func (r *reader) readOps() *fault {
	out, f := r.part("ops", ReasonParse)
	if f != nil {
		return f
	}
	return lines("ops", out, func(line string) error {
		w := strings.Split(line, " ")
		if len(w) != 5 || w[0] == "" || !slices.Contains(model.OpKinds(), model.OpKind(w[2])) {
			return fmt.Errorf("line %.60q is not an operation", line)
		}
		project, err := model.ParseProject(w[1])
		if err != nil {
			return err
		}
		op := Op{ID: w[0], Kind: model.OpKind(w[2])}
		if op.Epoch, err = strconv.ParseUint(w[3], 10, 63); err != nil {
			return fmt.Errorf("epoch of operation %.40q is not a number", w[0])
		}
		switch w[4] {
		case "running":
			op.Running = true
		case "lost":
			op.Lost = true
		default:
			status, err := strconv.ParseUint(w[4], 10, 8)
			if err != nil {
				return fmt.Errorf("state of operation %.40q is unknown", w[0])
			}
			op.Exit = int(status)
		}
		l := r.project(project)
		l.ops = append(l.ops, op)
		return nil
	})
}

// readProjects reads the list of our directories, and of each its marker,
// files and checkouts. A directory that is listed and could not be read makes
// its project partly seen, and no other: what is in it may be anybody's doing.
func (r *reader) readProjects() *fault {
	out, f := r.part("projects", ReasonPermission)
	if f != nil {
		return f
	}
	listed := map[model.Project]bool{}
	if f := lines("projects", out, func(line string) error {
		project, err := model.ParseProject(line)
		if err == nil && listed[project] {
			err = fmt.Errorf("project %s comes twice", project)
		}
		if err == nil {
			listed[project] = true
			r.readDirectory(project)
		}
		return err
	}); f != nil {
		return f
	}
	for name := range r.byName {
		kind, of, perProject := strings.Cut(name, ":")
		of, _, _ = strings.Cut(of, ":")
		if project, err := model.ParseProject(of); perProject && (err != nil || !listed[project]) {
			return malformed("part " + kind + " of a project that is not listed")
		}
	}
	return nil
}

func (r *reader) readDirectory(project model.Project) {
	l := r.project(project)
	l.dir.dir.Exists = true
	files, ok := r.ofProject("files", project)
	kv, f := fields("files", files)
	marker, ok2 := r.ofProject("marker", project)
	if !ok || !ok2 || f != nil || kv["path"] == "" {
		l.dir = dirLook{trouble: true}
	} else {
		l.dir.dir.Path, l.dir.dir.Compose, l.dir.dir.Last = kv["path"], kv["compose"], kv["last"]
		if m, err := model.ParseMarker(marker); err == nil {
			l.dir.dir.Marker, l.dir.dir.HasMarker = m, true
		}
	}
	r.readCheckouts(project, &l.checkouts)
}

func (r *reader) ofProject(kind string, project model.Project) ([]byte, bool) {
	p, ok := r.byName[kind+":"+project.String()]
	return p.Out, ok && p.Status == 0
}

func (r *reader) readCheckouts(project model.Project, into *checkoutsLook) {
	out, ok := r.ofProject("checkouts", project)
	if !ok {
		into.trouble = true
		return
	}
	if f := lines("checkouts", out, func(name string) error {
		p, ok := r.byName["git:"+project.String()+":"+name]
		c := Checkout{Name: name, Dirt: DirtUnknown, Why: "it could not be looked at"}
		if !ok {
			c.Why += " in time, or is one of too many, or of a name that only people read"
		}
		if ok && p.Status == 0 {
			c.Dirt, c.Why = dirt(p.Out)
		} else if line := firstLine(p.Err); line != "" {
			c.Why += ": " + line
		}
		into.list = append(into.list, c)
		return nil
	}); f != nil {
		into.trouble = true
	}
}

// dirt reads what git said of a checkout: numbers of changed and untracked
// files, of commits that are on no remote, and of stashes, and what is under
// way in it. Whatever is not there or not a number is unknown.
func dirt(out []byte) (Dirt, string) {
	kv, f := fields("git", out)
	if f != nil {
		return DirtUnknown, "git's answer is malformed"
	}
	if kv["repository"] != "yes" {
		return Dirty, "it is not a git repository"
	}
	if busy := kv["busy"]; busy != "" {
		return Dirty, "git is in the middle of something: " + firstLine([]byte(busy))
	}
	for _, n := range []struct{ key, what string }{
		{"changed", "changed or untracked files"}, {"unpushed", "commits that are on no remote"}, {"stashes", "stashes"},
	} {
		v, err := strconv.ParseUint(kv[n.key], 10, 31)
		if err != nil {
			return DirtUnknown, "git did not say how many " + n.what + " there are"
		}
		if v > 0 {
			return Dirty, fmt.Sprintf("%d %s", v, n.what)
		}
	}
	if kv["head"] != "yes" {
		return Dirty, "its HEAD is unborn"
	}
	return Clean, ""
}
