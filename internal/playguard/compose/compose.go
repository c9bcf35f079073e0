package compose

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/interpolation"
	"github.com/compose-spec/compose-go/v2/schema"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
)

// Limits of a compose file.
const (
	MaxFile     = 1 << 20 // bytes, before and after variables are filled in
	MaxServices = 100
)

// Input is one file to render.
type Input struct {
	Name      string // of the file, for messages
	File      []byte
	Variables map[string]string
	// Files are what lies beside it, by clean relative path. What a service uses
	// of them is part of its definition: it is made anew when they change.
	Files map[string][]byte
	// Checkout is set for a file out of a branch: what it mounts lies there.
	Checkout *Checkout

	Installation model.InstallationID
	Playground   model.PlaygroundID
	Project      model.Project
	Policy       Policy
	Job          bool // a trick: its services run once
}

// Rendered is what goes to the marquee.
type Rendered struct {
	File     []byte
	Digest   string // SHA-256 of File, as a look shows it
	Services []model.Service
	Volumes  []string // as docker names them on the host
	Needs    []string // paths beside the file that it uses, sorted
	Uses     []string // those of Files that are among them or below, sorted
	Warnings []string // what the policy lets pass with a word
	Watch    []string // of a job: services whose ends decide, sorted
	Routes   []model.Route
}

// document is a compose file while it is worked on.
type document struct {
	in   Input
	tree *ast.File
	root map[string]any

	rolled map[string]bool // services that are replaced without a gap
	watch  []string        // services that decide the end of a trick
	notes  []string        // warnings of the steps before the policy's
	routes []model.Route

	proxied []finding // labels for proxies that people set
}

// Render checks a compose file and makes the one for the marquee. Errors name
// the file, line and column. The same input gives the same bytes.
func Render(in Input) (Rendered, error) {
	d := &document{in: in}
	for _, step := range []func() error{d.parse, d.fill, d.validate, func() error { return proxyLabels(d) }, func() error { return route(d) }, func() error { return relocate(d) }, d.optional, func() error { return jobs(d) }, d.marks} {
		if err := step(); err != nil {
			return Rendered{}, err
		}
	}
	r := Rendered{Routes: d.routes, Watch: d.watch, Needs: d.needs(), Uses: d.uses(d.needs()), Warnings: d.notes}
	if err := d.present(&r); err != nil {
		return Rendered{}, err
	}
	var refused []string
	for _, f := range d.dangers() {
		switch text := d.at(f.path) + f.what; in.Policy.of(f.danger) {
		case Refuse:
			refused = append(refused, text)
		case Warn:
			r.Warnings = append(r.Warnings, text)
		}
	}
	if len(refused) > 0 {
		return Rendered{}, fleet.Errorf(fleet.CodeInvalidArgument, "the policy of this marquee refuses: %s", strings.Join(refused, "; ")).
			With(fleet.DetailRemedy, "take it out of the file, or have an operator allow it for this marquee")
	}
	return r, d.write(&r)
}

func (d *document) fail(path, format string, args ...any) error {
	err := fleet.Errorf(fleet.CodeInvalidArgument, "%s%s", d.at(path), fmt.Sprintf(format, args...))
	if path != "" {
		err = err.With(fleet.DetailScope, path)
	}
	return err
}

// at is "file:line:column: " of a path such as services.web.ports, or of the
// nearest part of it that the file has.
func (d *document) at(path string) string {
	name := cmp.Or(d.in.Name, "compose.yml")
	for d.tree != nil && path != "" {
		if line, column, ok := find(d.tree, path); ok {
			return fmt.Sprintf("%s:%d:%d: ", name, line, column)
		}
		cut := strings.LastIndexByte(path, '.')
		if cut < 0 {
			break
		}
		path = path[:cut]
	}
	return name + ": "
}

// find walks the tree along a path.
func find(tree *ast.File, path string) (line, column int, ok bool) {
	if len(tree.Docs) == 0 {
		return 0, 0, false
	}
	node := tree.Docs[0].Body
	var key ast.Node
	for part := range strings.SplitSeq(path, ".") {
		var next ast.Node
		switch n := unwrap(node).(type) {
		case *ast.MappingNode:
			for _, v := range n.Values {
				if keyText(v.Key) == part {
					key, next = v.Key, v.Value
				}
			}
		case *ast.MappingValueNode:
			if keyText(n.Key) == part {
				key, next = n.Key, n.Value
			}
		case *ast.SequenceNode:
			var i int
			if _, err := fmt.Sscanf(strings.Trim(part, "[]"), "%d", &i); err == nil && i >= 0 && i < len(n.Values) {
				key, next = n.Values[i], n.Values[i]
			}
		}
		if next == nil {
			return 0, 0, false
		}
		node = next
	}
	if key == nil {
		return 0, 0, false
	}
	at := key.GetToken().Position
	return at.Line, at.Column, true
}

func unwrap(n ast.Node) ast.Node {
	for {
		switch w := n.(type) {
		case *ast.AnchorNode:
			n = w.Value
		case *ast.TagNode:
			n = w.Value
		default:
			return n
		}
	}
}

func keyText(k ast.MapKeyNode) string {
	if s, ok := k.(*ast.StringNode); ok {
		return s.Value
	}
	return k.String()
}

// parse reads the YAML into plain maps.
func (d *document) parse() error {
	if len(d.in.File) > MaxFile {
		return fleet.Errorf(fleet.CodePayloadTooLarge, "%s has %d bytes", cmp.Or(d.in.Name, "compose.yml"), len(d.in.File)).
			With(fleet.DetailLimit, fmt.Sprint(MaxFile)).With(fleet.DetailRemedy, "put data into files beside it")
	}
	tree, err := parser.ParseBytes(d.in.File, 0)
	if err != nil {
		return d.yamlError(err)
	}
	if len(tree.Docs) != 1 || tree.Docs[0].Body == nil {
		return d.fail("", "want one YAML document with services in it")
	}
	d.tree = tree
	if err := yaml.NodeToValue(tree.Docs[0].Body, &d.root); err != nil {
		return d.yamlError(err)
	}
	c := copier{left: maxNodes}
	plain, ok := c.copy(d.root, 0).(map[string]any)
	switch {
	case c.over:
		return d.fail("", "it grows too large, or too deep, once its aliases are followed")
	case !ok || len(plain) == 0:
		return d.fail("", "want a mapping with services in it")
	}
	d.root = plain
	return nil
}

// Bounds of a file once its aliases are followed: each may double what is
// before it.
const (
	maxNodes = 100_000
	maxDepth = 100
)

func (d *document) yamlError(err error) error {
	var where yaml.Error
	if errors.As(err, &where) && where.GetToken() != nil {
		at := where.GetToken().Position
		return fleet.Errorf(fleet.CodeInvalidArgument, "%s:%d:%d: %s", cmp.Or(d.in.Name, "compose.yml"), at.Line, at.Column, where.GetMessage())
	}
	return d.fail("", "it is not YAML: %s", firstLine(err.Error()))
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s[:min(len(s), 200)]
}

// copier turns what the parser gives into what JSON knows, within bounds.
type copier struct {
	left int
	over bool
}

func (c *copier) copy(v any, depth int) any {
	if c.left--; c.left < 0 || depth > maxDepth {
		c.over = true
	}
	if c.over {
		return nil
	}
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = c.copy(e, depth+1)
		}
		return out
	case map[any]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[fmt.Sprint(k)] = c.copy(e, depth+1)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = c.copy(e, depth+1)
		}
		return out
	case string:
		c.left -= len(v) / 64
	case uint64:
		return int(min(v, 1<<62))
	case int64:
		return int(v)
	}
	return v
}

// fill puts the variables in. One that is not given and has no default is an
// error: a file with a gap is never sent.
func (d *document) fill() error {
	missing := map[string]bool{}
	out, err := interpolation.Interpolate(d.root, interpolation.Options{
		LookupValue: func(name string) (string, bool) {
			v, ok := d.in.Variables[name]
			return v, ok
		},
		Substitute: func(text string, mapping template.Mapping) (string, error) {
			return template.SubstituteWithOptions(text, func(name string) (string, bool) {
				v, ok := mapping(name)
				if !ok && plainUse(text, name) {
					missing[name] = true
					return "", true // it fails below, with all of them
				}
				return v, ok
			}, template.WithoutLogging)
		},
	})
	if err != nil {
		return d.fail("", "variables: %s", firstLine(err.Error()))
	}
	if len(missing) > 0 {
		names := slices.Sorted(maps.Keys(missing))
		return fleet.Errorf(fleet.CodeInvalidArgument, "%svariables without a value: %s", d.use(names[0]), strings.Join(names, ", "))
	}
	d.root = out
	d.inherit()
	return nil
}

// use is "file:line:column: " of the first use of a variable.
func (d *document) use(name string) string {
	file := cmp.Or(d.in.Name, "compose.yml")
	at := regexp.MustCompile(`\$(` + name + `\b|\{` + name + `\b)`).FindIndex(d.in.File)
	if at == nil { // in a part that an alias repeats
		return file + ": "
	}
	before := string(d.in.File[:at[0]])
	return fmt.Sprintf("%s:%d:%d: ", file, strings.Count(before, "\n")+1, len(before)-strings.LastIndexByte(before, '\n'))
}

// plainUse reports whether text uses a variable without saying what to do when
// there is none.
func plainUse(text, name string) bool {
	return regexp.MustCompile(`\$` + name + `\b|\$\{` + name + `\}`).MatchString(text)
}

var schemaPath = regexp.MustCompile(`^(?:validating [^:]*: )?([A-Za-z0-9_.\[\]-]+) (.*)$`)

// validate holds the file to the Compose specification.
func (d *document) validate() error {
	if err := schema.Validate(d.root); err != nil {
		text := firstLine(err.Error())
		if m := schemaPath.FindStringSubmatch(text); m != nil {
			path := m[1]
			if q := regexp.MustCompile(`'([^']+)'`).FindStringSubmatch(m[2]); q != nil && strings.Contains(m[2], "additional") {
				path += "." + q[1]
			}
			if m[2] == "false schema" { // the schema's words for a key that it does not have
				return d.fail(path, "%s is not a key that Compose knows there", m[1])
			}
			return d.fail(path, "%s %s", m[1], m[2])
		}
		return d.fail("", "%s", text)
	}
	services := d.section("services")
	if len(services) == 0 {
		return d.fail("services", "it has no services")
	}
	if len(services) > MaxServices {
		return d.fail("services", "it has %d services, more than %d", len(services), MaxServices)
	}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s, _ := services[name].(map[string]any)
		at := "services." + name
		switch {
		case s["container_name"] != nil:
			return d.fail(at+".container_name", "a service with a container_name of its own can be there once only, and collides with other projects; leave the name to Compose")
		case s["build"] != nil:
			return d.fail(at+".build", "images are not built on a marquee; name an image")
		case s["image"] == nil:
			return d.fail(at, "service %s has no image", name)
		case s["extends"] != nil:
			return d.fail(at+".extends", "extends reads other files; write the service out")
		}
		if err := d.elsewhere(at, s); err != nil {
			return err
		}
	}
	if d.root["include"] != nil {
		return d.fail("include", "include reads other files; write them out")
	}
	if err := d.elsewhereAll(); err != nil {
		return err
	}
	return references(d)
}

func (d *document) section(name string) map[string]any {
	m, _ := d.root[name].(map[string]any)
	return m
}

// write adds the labels and encodes. The name of the project is not written:
// it is given on the command line, and Compose v1 does not know it.
func (d *document) write(r *Rendered) error {
	ours := map[string]string{
		model.LabelInstallation: string(d.in.Installation), model.LabelPlayground: string(d.in.Playground),
	}
	delete(d.root, "name")
	services := d.section("services")
	for _, name := range slices.Sorted(maps.Keys(services)) {
		s, ok := services[name].(map[string]any)
		if !ok {
			return d.fail("services."+name, "service %s is empty", name)
		}
		labels, err := labelsOf(s["labels"])
		if err != nil {
			return d.fail("services."+name+".labels", "%s", err)
		}
		for k := range labels {
			if reserved(k) {
				return d.fail("services."+name+".labels", "labels that begin with fuse.playguard. or com.docker.compose. are not for people to set")
			}
		}
		maps.Copy(labels, ours)
		s["labels"] = labels
		raw, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("encode service %s: %w", name, err)
		}
		hash := sha256.New()
		hash.Write(raw)
		d.hashFiles(hash, s)
		digest := hex.EncodeToString(hash.Sum(nil))
		labels[model.LabelDigest] = digest
		r.Services = append(r.Services, model.Service{Name: name, Digest: digest, Rolled: d.rolled[name]})
	}
	for _, kind := range []string{"volumes", "networks"} {
		if err := d.labelAll(kind, ours, r); err != nil {
			return err
		}
	}
	// A network of our own that is not declared gets its labels too, so that a
	// destroy finds it.
	if d.usesDefaultNetwork() {
		networks := d.section("networks")
		if networks == nil {
			networks = map[string]any{}
			d.root["networks"] = networks
		}
		if networks["default"] == nil {
			networks["default"] = map[string]any{"labels": ours}
		}
	}
	out, err := yaml.MarshalWithOptions(escaped(d.root), yaml.UseJSONMarshaler())
	if err != nil {
		return fmt.Errorf("encode the compose file: %w", err)
	}
	out = append(mountHead(d), out...)
	if d.in.Job {
		out = append([]byte(onceHead), out...)
	}
	out = append(routeHead(d.routes), out...)
	out = append(head(r.Services), out...)
	if len(out) > MaxFile {
		return d.fail("", "it has %d bytes with its variables filled in, more than %d", len(out), MaxFile)
	}
	sum := sha256.Sum256(out)
	r.File, r.Digest = out, hex.EncodeToString(sum[:])
	return nil
}

// labelAll labels the volumes or networks that the project makes.
func (d *document) labelAll(kind string, ours map[string]string, r *Rendered) error {
	all := d.section(kind)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		v, _ := all[name].(map[string]any)
		if v == nil {
			v = map[string]any{}
		}
		if external(v) {
			continue
		}
		if v["name"] != nil {
			return d.fail(kind+"."+name+".name", "a name of its own collides with other projects; leave the name to Compose, or say external: true")
		}
		labels, err := labelsOf(v["labels"])
		if err != nil {
			return d.fail(kind+"."+name+".labels", "%s", err)
		}
		for k := range labels {
			if reserved(k) {
				return d.fail(kind+"."+name+".labels", "labels that begin with fuse.playguard. or com.docker.compose. are not for people to set")
			}
		}
		maps.Copy(labels, ours)
		v["labels"] = labels
		all[name] = v
		if kind == "volumes" {
			r.Volumes = append(r.Volumes, d.in.Project.String()+"_"+name)
		}
	}
	return nil
}

func external(v map[string]any) bool {
	switch e := v["external"].(type) {
	case bool:
		return e
	case map[string]any:
		return true
	}
	return false
}

func (d *document) usesDefaultNetwork() bool {
	for _, v := range d.section("services") {
		s, _ := v.(map[string]any)
		if s["network_mode"] == nil && s["networks"] == nil {
			return true
		}
	}
	return false
}

// labelsOf reads both forms of labels.
func labelsOf(v any) (map[string]string, error) {
	out := map[string]string{}
	switch v := v.(type) {
	case nil:
	case map[string]any:
		for k, e := range v {
			if e == nil {
				e = ""
			}
			out[k] = fmt.Sprint(e)
		}
	case []any:
		for _, e := range v {
			k, value, _ := strings.Cut(fmt.Sprint(e), "=")
			out[k] = value
		}
	default:
		return nil, errors.New("labels are neither a mapping nor a list")
	}
	return out, nil
}
