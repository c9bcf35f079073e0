package lifecycle

import (
	"bytes"
	"encoding/json"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// manifest is what the server itself reads of a guest manifest (inventory
// 4.2). The document travels to the guest as the caller wrote it.
type manifest struct {
	Version string `json:"version"`
	Machine struct {
		Workspace string              `json:"workspace"`
		Env       map[string]envValue `json:"env"`
	} `json:"machine"`
	Services map[string]json.RawMessage `json:"services"`
}

// envValue is a value in clear or the name of a secret.
type envValue struct {
	Value  *string `json:"value"`
	Secret string  `json:"secret"`
}

const defaultWorkspace = "/workspace"

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (p *plan) parseManifest() error {
	if len(p.boot.Manifest) == 0 {
		p.boot.Manifest = []byte(fleet.DefaultFusedManifest)
	}
	p.boot.Manifest = bytes.Clone(p.boot.Manifest)
	m, err := decodeManifest(p.boot.Manifest)
	p.manifest = m
	return err
}

func decodeManifest(doc []byte) (manifest, error) {
	const field = "manifest_inline"
	var m manifest
	if err := json.Unmarshal(doc, &m); err != nil {
		return m, fleet.Errorf(fleet.CodeInvalidArgument, "%s is not a manifest: %w", field, err).
			With(fleet.DetailScope, field).With(fleet.DetailRemedy, `send a JSON object with "version":"1"`)
	}
	if m.Version != "1" {
		return m, fleet.Invalid(field, `version "1"`, `set "version":"1"`, "has version %.20q", m.Version)
	}
	if len(m.Services) > 0 {
		return m, unbuilt("manifest services")
	}
	orDefault(&m.Machine.Workspace, defaultWorkspace)
	if w := m.Machine.Workspace; !path.IsAbs(w) || path.Clean(w) != w || strings.ContainsAny(w, "\x00\n\r") || within(fleet.ReservedGuestDir, w) {
		return m, fleet.Invalid(field, "an absolute, clean path outside "+fleet.ReservedGuestDir, "use "+defaultWorkspace, "has the workspace %.120q", w)
	}
	for _, k := range slices.Sorted(maps.Keys(m.Machine.Env)) {
		v := m.Machine.Env[k]
		switch {
		case !envName.MatchString(k):
			return m, fleet.Invalid(field, envName.String(), "rename the variable", "has the variable %.80q", k)
		case (v.Value == nil) == (v.Secret == ""):
			return m, fleet.Invalid(field, "exactly one of value and secret", "give the variable a value or the name of a secret", "has the variable %.80q with both or neither", k)
		case v.Value != nil && strings.ContainsRune(*v.Value, 0):
			return m, fleet.Invalid(field, "text", "take the NUL byte out", "has the variable %.80q with a NUL byte", k)
		}
	}
	return m, nil
}

// secretNames are the secrets that the manifest needs, sorted.
func (m manifest) secretNames() []string {
	names := map[string]bool{}
	for _, v := range m.Machine.Env {
		if v.Secret != "" {
			names[v.Secret] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// env renders the machine's environment as lines of KEY='value' that a shell
// can source; empty without any.
func (m manifest) env(secrets map[string]string) []byte {
	var b bytes.Buffer
	for _, k := range slices.Sorted(maps.Keys(m.Machine.Env)) {
		v := secrets[m.Machine.Env[k].Secret]
		if lit := m.Machine.Env[k].Value; lit != nil {
			v = *lit
		}
		b.WriteString(k + "=" + shellQuote(v) + "\n")
	}
	return b.Bytes()
}

// shellQuote makes one word of s for a POSIX shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
