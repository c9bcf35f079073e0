package lifecycle

import (
	"bytes"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lifecycle/uploads"
	"github.com/fusevm/fuse/internal/services"
)

// manifest is what the server itself reads of a guest manifest (inventory
// 4.2). The document travels to the guest as the caller wrote it.
type manifest struct {
	Version string `json:"version"`
	Machine struct {
		Workspace string       `json:"workspace"`
		Env       services.Env `json:"env"`
	} `json:"machine"`
	Services map[string]json.RawMessage `json:"services"`

	services []services.Service
	images   []string // of services
}

const defaultWorkspace = "/workspace"

func (p *plan) parseManifest() error {
	if len(p.boot.Manifest) == 0 {
		p.boot.Manifest = []byte(fleet.DefaultFusedManifest)
	}
	p.boot.Manifest = bytes.Clone(p.boot.Manifest)
	m, err := decodeManifest(p.boot.Manifest)
	p.manifest, p.spec.ServiceImages = m, m.images
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
	list, err := services.Parse(m.Services)
	if err != nil {
		return m, err
	}
	m.services = list
	if m.images, err = services.Images(list); err != nil {
		return m, err
	}
	orDefault(&m.Machine.Workspace, defaultWorkspace)
	if w := m.Machine.Workspace; !path.IsAbs(w) || path.Clean(w) != w || strings.ContainsAny(w, "\x00\n\r") || uploads.Within(fleet.ReservedGuestDir, w) {
		return m, fleet.Invalid(field, "an absolute, clean path outside "+fleet.ReservedGuestDir, "use "+defaultWorkspace, "has the workspace %.120q", w)
	}
	return m, m.Machine.Env.Check("machine.env")
}

// secretNames are the secrets that the manifest needs, sorted.
func (m manifest) secretNames() []string {
	names := map[string]bool{}
	m.Machine.Env.Secrets(names)
	for _, s := range m.services {
		s.Env.Secrets(names)
	}
	return slices.Sorted(maps.Keys(names))
}

// shellQuote makes one word of s for a POSIX shell.
func shellQuote(s string) string { return services.Quote(s) }
