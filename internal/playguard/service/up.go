package service

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Bounds of playgrounds.
const (
	MaxPerOwner   = 1000
	MaxPerMarquee = 100
)

// composeNames are tried in this order.
var composeNames = []string{"compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"}

// directory is what a request gives, checked.
type directory struct {
	name      string // of the compose file, for messages
	compose   []byte
	files     map[string]File
	variables map[string]string
}

// readDirectory checks the files of a request. Paths are as seen from the
// compose file.
func readDirectory(req UpRequest) (d directory, err error) {
	if len(req.Files) > MaxFiles {
		return d, fleet.Invalid("files", fmt.Sprint(MaxFiles), "give only what the compose file uses", "has %d files", len(req.Files))
	}
	all, total := map[string]File{}, 0
	for _, f := range req.Files {
		total += len(f.Data)
		switch {
		case !plainPath(f.Path):
			return d, fleet.Invalid("files", "a clean relative path of plain characters", "rename the file", "path %.120q is not one", f.Path)
		case len(f.Data) > MaxFileBytes || total > MaxBytes:
			return d, fleet.Errorf(fleet.CodePayloadTooLarge, "file %s makes it too large", f.Path).
				With(fleet.DetailLimit, fmt.Sprintf("%d bytes a file, %d in all", MaxFileBytes, MaxBytes)).
				With(fleet.DetailRemedy, "put large files into an image")
		}
		all[f.Path] = f
	}
	at := req.Compose
	for i := 0; at == "" && i < len(composeNames); i++ {
		if _, ok := all[composeNames[i]]; ok {
			at = composeNames[i]
		}
	}
	file, ok := all[at]
	if !ok {
		return d, fleet.Invalid("compose", "the path of one of the files", "name it "+composeNames[0]+", or say which it is", "file %.120q is not among the files", cmp.Or(at, composeNames[0]))
	}
	d = directory{name: at, compose: file.Data, files: map[string]File{}, variables: map[string]string{}}
	base := path.Dir(at)
	for p, f := range all {
		rel, inside := strings.CutPrefix(p, base+"/")
		switch {
		case p == at || base != "." && !inside:
			continue
		case base == ".":
			rel = p
		}
		if rel == "compose.yml" || strings.HasPrefix(rel, ".fuse/") || strings.HasPrefix(rel, "docker-config/") || strings.HasPrefix(rel, "props/") {
			if rel == "compose.yml" {
				continue
			}
			return d, fleet.Invalid("files", "not below .fuse, docker-config or props", "rename the directory", "path %.120q is Playguard's own", rel)
		}
		f.Path, f.Mode = rel, cmp.Or(f.Mode&0o777, 0o644)
		d.files[rel] = f
	}
	return d, d.readVariables(req)
}

// readVariables takes those of a file .env, and over them those of the request.
func (d *directory) readVariables(req UpRequest) error {
	if env, ok := d.files[".env"]; ok {
		found, err := dotenv.ParseWithLookup(bytes.NewReader(env.Data), func(name string) (string, bool) {
			v, ok := req.Variables[name]
			return v, ok
		})
		if err != nil { // the text may quote a value
			return fleet.Invalid("files", "NAME=VALUE lines", "correct the file", ".env cannot be read")
		}
		maps.Copy(d.variables, found)
	}
	maps.Copy(d.variables, req.Variables)
	if len(d.variables) > MaxVariables {
		return fleet.Invalid("variables", fmt.Sprint(MaxVariables), "give fewer", "has %d of them", len(d.variables))
	}
	for name, v := range d.variables {
		if len(v) > 32<<10 || len(name) > 200 {
			return fleet.Invalid("variables", "32 KiB each", "put it into a file", "%.80q is too long", name)
		}
	}
	return nil
}

// plainPath reports whether a path is a clean relative one that every shell and
// archive takes as it is.
func plainPath(p string) bool {
	if p == "" || len(p) > 300 || path.IsAbs(p) || path.Clean(p) != p || p == ".." || strings.HasPrefix(p, "../") {
		return false
	}
	return strings.IndexFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) < 0
}

// draft is an Up that was worked out and not yet done.
type draft struct {
	Plan
	marquee  records.Marquee
	existing *records.Playground // nil: it is new
	id       model.PlaygroundID
	version  records.Version
	keep     bool
	pull     model.Pull
	expires  string
	trick    *model.Trick
}

// draft works an Up out.
func (s *Service) draft(ctx context.Context, req UpRequest) (*draft, error) {
	if err := checkName("name", req.Name); err != nil {
		return nil, err
	}
	if err := req.Policy.Validate(); err != nil {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "policy: %w", err).With(fleet.DetailScope, "policy")
	}
	dir, err := readDirectory(req)
	if err != nil {
		return nil, err
	}
	d := &draft{id: model.PlaygroundID(strings.ToLower(uid.New())), keep: req.KeepVolumes, pull: req.Pull, expires: req.Expires, trick: req.Trick}
	var before records.Version
	if err := s.Store.View(func(tx *state.ReadTx) error {
		if err := d.find(ctx, tx, req); err != nil {
			return err
		}
		if d.existing != nil {
			d.id = d.existing.ID
			d.keep = d.keep || d.existing.KeepVolumes                               // only a destroy may say otherwise
			before, _ = records.OpenVersion(tx, s.Sealer, d.id, d.existing.Desired) // without it everything counts as changed
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if err := life(req, d.existing); err != nil {
		return nil, err
	}
	if d.Project, err = model.NewProject(req.Name, d.id); err != nil {
		return nil, err
	}
	if d.existing != nil {
		d.Project = d.existing.Project
	}
	if err := d.render(dir, req.Policy, d.marquee.Known(s.Installation)); err != nil {
		return nil, err
	}
	if err := d.fetching(); err != nil {
		return nil, err
	}
	d.describe(before, inputDigest(dir, req))
	return d, nil
}

// find looks up what the request names.
func (d *draft) find(ctx context.Context, tx state.Reader, req UpRequest) error {
	owner := who(ctx).owner
	for _, p := range records.Playgrounds.All(tx) {
		if p.Owner == owner && p.Name == req.Name {
			d.existing = p
		}
	}
	want := req.Marquee
	if want == "" && d.existing != nil {
		want = string(d.existing.Marquee)
	}
	if want == "" {
		switch n := records.Marquees.Len(tx); n {
		case 1:
		case 0:
			return fleet.Invalid("marquee", "an id or name", "register a Docker host first: fuse marquee add USER@HOST", "is missing, and there is none yet")
		default:
			return fleet.Invalid("marquee", "an id or name", "say on which it is to be; fuse marquee ls lists them", "is missing, and there are %d", n)
		}
		for id := range records.Marquees.All(tx) {
			want = id
		}
	}
	m, err := findMarquee(tx, want)
	if err != nil {
		return err
	}
	d.marquee = *m
	switch {
	case d.existing != nil && d.existing.Marquee != m.ID:
		return fleet.Errorf(fleet.CodeConflict, "playground %s is on another marquee, and never moves", req.Name).
			With(fleet.DetailReason, "marquee").With(fleet.DetailRemedy, "destroy it there first, or take another name")
	case d.existing != nil:
		return nil
	}
	return Room(tx, owner, m) // and again with the commit
}

// render makes the definition for the marquee.
func (d *draft) render(dir directory, stricter compose.Policy, inst model.InstallationID) error {
	contents := make(map[string][]byte, len(dir.files))
	for p, f := range dir.files {
		contents[p] = f.Data
	}
	r, err := compose.Render(compose.Input{
		Name: dir.name, File: dir.compose, Variables: dir.variables, Files: contents,
		Installation: inst, Playground: d.id, Project: d.Project, Policy: strictest(d.marquee.Policy, stricter), Job: d.trick != nil,
	})
	if err != nil {
		return err
	}
	d.Warnings = r.Warnings
	if d.trick != nil {
		d.trick = new(*d.trick)
		d.trick.Watch = r.Watch
	}
	d.version = records.Version{Digest: r.Digest, Compose: r.File, Services: r.Services, Volumes: r.Volumes}
	for _, p := range r.Uses {
		f := dir.files[p]
		d.version.Files = append(d.version.Files, records.File{Path: p, Mode: f.Mode, Data: f.Data})
	}
	return nil
}

// strictest takes of each danger the harder verdict; what the marquee does not
// name is refused.
func strictest(marquee, request compose.Policy) compose.Policy {
	rank := map[compose.Verdict]int{compose.Allow: 1, compose.Warn: 2, compose.Refuse: 3}
	out := compose.Policy{}
	for _, d := range compose.Dangers() {
		v := cmp.Or(marquee[d], compose.Refuse)
		if r, ok := request[d]; ok && rank[r] > rank[v] {
			v = r
		}
		out[d] = v
	}
	return out
}

// inputDigest names what a request gives, whatever id it gets.
func inputDigest(dir directory, req UpRequest) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %v %v\n", req.Name, dir.compose, req.KeepVolumes, req.Policy)
	for _, p := range slices.Sorted(maps.Keys(dir.files)) {
		fmt.Fprintf(h, "%q %o %q\n", p, dir.files[p].Mode, dir.files[p].Data)
	}
	for _, n := range slices.Sorted(maps.Keys(dir.variables)) {
		fmt.Fprintf(h, "%q=%q\n", n, dir.variables[n])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// describe fills in what people are shown.
func (d *draft) describe(before records.Version, input string) {
	d.Plan.New, d.Name = d.existing == nil, d.marquee.Name
	d.Marquee, d.MarqueeAs, d.Volumes = d.marquee.ID, d.marquee.Name, d.version.Volumes
	rows := fmt.Sprintf("%s %d", d.marquee.ID, len(d.marquee.Policy))
	if d.existing != nil {
		d.ID, d.Name, d.State = d.existing.ID, d.existing.Name, d.existing.State
		rows += fmt.Sprintf(" %s %s %s", d.ID, d.existing.Desired, d.State)
		if a, ok := d.action(); ok && !d.State.Allows(a) {
			d.Refused = fmt.Sprintf("it is %s", d.State)
		}
	}
	sum := sha256.Sum256([]byte(rows + input))
	d.Token = hex.EncodeToString(sum[:16])
	d.services(before)
	d.beside(before)
	switch {
	case d.marquee.Admin != model.AdminActive:
		d.Refused = "a person quarantined the marquee: " + d.marquee.AdminWhy
	case d.marquee.Reach == model.ReachQuarantined:
		d.Warnings = append(d.Warnings, "marquee "+d.marquee.Name+" cannot be seen now ("+d.marquee.Trouble+"); the work begins when it is back")
	}
}

func (d *draft) services(before records.Version) {
	old := map[string]string{}
	for _, s := range before.Services {
		old[s.Name] = s.Digest
	}
	details := detailsOf(d.version.Compose)
	for _, s := range d.version.Services {
		switch digest, had := old[s.Name]; {
		case !had:
			d.Changes = append(d.Changes, Change{What: "service", Name: s.Name, Does: "create", Detail: details[s.Name]})
		case digest == s.Digest:
			d.Unchanged = append(d.Unchanged, s.Name)
		default:
			detail := details[s.Name]
			if s.Rolled {
				detail += "; the old one serves until the new one is up"
			}
			d.Changes = append(d.Changes, Change{What: "service", Name: s.Name, Does: "replace", Detail: detail})
		}
		delete(old, s.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(old)) {
		d.Changes = append(d.Changes, Change{What: "service", Name: name, Does: "remove"})
	}
	for _, v := range d.version.Volumes {
		if !slices.Contains(before.Volumes, v) {
			d.Changes = append(d.Changes, Change{What: "volume", Name: v, Does: "create"})
		}
	}
}

func (d *draft) beside(before records.Version) {
	old := map[string][]byte{}
	for _, f := range before.Files {
		old[f.Path] = f.Data
	}
	for _, f := range d.version.Files {
		d.Files = append(d.Files, f.Path)
		switch data, had := old[f.Path]; {
		case !had:
			d.Changes = append(d.Changes, Change{What: "file", Name: f.Path, Does: "create"})
		case !bytes.Equal(data, f.Data):
			d.Changes = append(d.Changes, Change{What: "file", Name: f.Path, Does: "replace"})
		}
	}
}

// action is what the Up asks of an existing playground; false if it is as it
// should be.
func (d *draft) action() (model.Action, bool) {
	p := d.existing
	switch {
	case p.State == model.StateStopped:
		return model.ActionStart, true
	case p.State == model.StateRunning && p.Desired == d.version.Digest && p.Applied == p.Desired:
		return "", false
	}
	return model.ActionRollout, true
}

// Plan says what Up would do, and does nothing.
func (s *Service) Plan(ctx context.Context, req UpRequest) (Plan, error) {
	d, err := s.draft(ctx, req)
	if err != nil {
		return Plan{}, err
	}
	d.Name = req.Name
	return d.Plan, nil
}

// Up makes a playground, or gives it a new definition. One that is as the
// request wants it is left alone.
func (s *Service) Up(ctx context.Context, req UpRequest) (Playground, error) {
	d, err := s.draft(ctx, req)
	if err != nil {
		return Playground{}, err
	}
	if req.Plan != "" && req.Plan != d.Token {
		return Playground{}, fleet.Errorf(fleet.CodeConflict, "the plan is not what would be done now").
			With(fleet.DetailReason, "plan_changed").With(fleet.DetailRemedy, "look at the plan again")
	}
	if d.Refused != "" {
		return Playground{}, fleet.Errorf(fleet.CodeConflict, "%s: %s", req.Name, d.Refused).With(fleet.DetailReason, "state").
			With(fleet.DetailRemedy, "wait until what is under way has ended; fuse playground explain tells")
	}
	if d.existing != nil {
		if _, owed := d.action(); !owed && d.keep == d.existing.KeepVolumes && d.expires == "" && !d.existing.Claimed {
			return view(d.existing), nil
		}
	}
	key, entry, err := records.SealVersion(s.Sealer, d.id, d.version)
	if err != nil {
		return Playground{}, err
	}
	var out records.Playground
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		if err := fits(tx, who(ctx).owner, len(entry.VersionSealed), s.MaxStored); err != nil {
			return err
		}
		if err := records.Entries.Put(tx, key, &entry); err != nil {
			return err
		}
		if out, err = d.record(ctx, tx, req.Name); err != nil {
			return err
		}
		out.Revision, out.UpdatedAt = tx.Revision()+1, tx.Now()
		return records.PutPlayground(tx, out)
	})
	if err != nil {
		return Playground{}, err
	}
	if out.State == model.StatePending {
		s.Loop.Begin(out.Marquee, out.ID)
	}
	return view(&out), nil
}

// fits refuses what would make an owner's definitions take too much room.
func fits(tx *state.Tx, owner string, more, most int) error {
	stored := more
	for _, p := range records.Playgrounds.All(tx) {
		if p.Owner == owner {
			stored += records.Stored(tx, p.ID)
		}
	}
	if stored <= most {
		return nil
	}
	return fleet.Errorf(fleet.CodePayloadTooLarge, "the definitions of %s would take %d bytes", owner, stored).
		With(fleet.DetailLimit, fmt.Sprint(most)).With(fleet.DetailRemedy, "destroy playgrounds, or put large files into an image")
}

// free refuses a name that the owner has given already: an up would not know
// which is meant.
func free(tx state.Reader, owner, name string) error {
	for _, o := range records.Playgrounds.All(tx) {
		if o.Owner == owner && o.Name == name {
			return fleet.Errorf(fleet.CodeConflict, "there is a playground %s by now", name).
				With(fleet.DetailReason, "exists").With(fleet.DetailRemedy, "take another name")
		}
	}
	return nil
}

// record makes the row that an Up leaves, and tells of it.
func (d *draft) record(ctx context.Context, tx *state.Tx, name string) (p records.Playground, err error) {
	by := who(ctx)
	if d.existing == nil {
		if err := free(tx, by.owner, name); err != nil {
			return p, err
		}
		m, ok := records.Marquees.Get(tx, string(d.marquee.ID))
		if !ok {
			return p, notFound("marquee", d.marquee.Name)
		}
		if err := Room(tx, by.owner, m); err != nil {
			return p, err
		}
		now := tx.Now()
		p = records.Playground{Name: name, Owner: by.owner, Actor: by.actor, CreatedAt: now, Playground: model.Playground{
			ID: d.id, Marquee: d.marquee.ID, Project: d.Project, Player: by.owner,
			Intent: model.IntentUp, IntentSince: now, State: model.StatePending, StateSince: now,
			Reason: "requested: " + string(model.ActionCreate), Owed: model.ActionCreate, Queued: model.Queued{At: now},
		}}
		if err := d.fill(tx, &p); err != nil {
			return p, err
		}
		records.Tell(tx, &p, records.Note{
			Type: fleet.EventPlaygroundCreated, Reason: by.reason(""),
			Payload: events.PlaygroundChange{Action: string(model.ActionCreate), To: string(p.State)},
		})
		return p, d.ending(&p, now)
	}
	row, ok := records.Playgrounds.Get(tx, string(d.id))
	if !ok || row.Revision != d.existing.Revision && row.State != d.existing.State {
		return p, records.ErrMoved
	}
	p = *row
	if action, owed := d.action(); owed {
		if err := request(tx, by, &p, action); err != nil {
			return p, err
		}
	}
	changed := p.Desired != d.version.Digest
	if err := d.fill(tx, &p); err != nil {
		return p, err
	}
	if changed {
		records.Tell(tx, &p, records.Note{
			Type: fleet.EventPlaygroundUpdated, Reason: by.reason(""), Payload: map[string]string{"digest": p.Desired},
		})
	}
	return p, d.ending(&p, tx.Now())
}

func (d *draft) fill(tx *state.Tx, p *records.Playground) error {
	p.Desired, p.Services, p.Volumes, p.KeepVolumes = d.version.Digest, d.version.Services, d.version.Volumes, d.keep
	p.Registries, p.Pull = compose.Registries(d.version.Compose), d.pull
	p.Claimed = false // its owner says so
	return records.Route(tx, p, d.version.Compose)
}

// request writes what somebody asks for into a record, and tells of it. A job
// that works on it finds that it is not its any more.
func request(tx *state.Tx, by caller, p *records.Playground, a model.Action) error {
	q, err := p.Request(a, tx.Now())
	if err != nil {
		return err
	}
	records.Tell(tx, p, records.Note{
		Type: fleet.EventPlaygroundRequested, Reason: by.reason(""),
		Payload: events.PlaygroundChange{From: string(p.State), To: string(q.State), Action: string(a)},
	})
	p.Playground, p.Actor, p.Job, p.Step = q, by.actor, "", ""
	return nil
}
