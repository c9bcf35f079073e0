package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// KindPlayground is the Kind of a playground's owner marker.
const KindPlayground = "playground"

// maxMarker bounds the marker that is read back.
const maxMarker = 4096

// Marker is the owner marker in a playground's directory, the proof that the
// directory is ours. It holds no secret.
type Marker struct {
	Kind         string         `json:"kind"`
	Installation InstallationID `json:"installation"`
	Marquee      MarqueeID      `json:"marquee"`
	Playground   PlaygroundID   `json:"playground"`
	Project      Project        `json:"project"`
	Epoch        uint64         `json:"epoch"` // lease epoch it was written under
	CreatedAt    time.Time      `json:"created_at"`

	// What follows proves nothing. It brings the record back if that is lost, and
	// tells whether the records that there are have written the marker.
	Lineage  string `json:"lineage,omitempty"`  // of the term it was written in
	Revision uint64 `json:"revision,omitempty"` // of the store
	Name     string `json:"name,omitempty"`     // that people gave the playground
	Owner    string `json:"owner,omitempty"`
	// Expires is when it ends by itself; zero: never.
	Expires time.Time `json:"expires_at,omitzero"`

	Branch *MarkerBranch `json:"branch,omitempty"` // that it follows
}

// MarkerBranch is what a marker says of a branch: enough to follow it again. What
// is filled in, and keys of servers, are not in it.
type MarkerBranch struct {
	Repository string `json:"repository"`
	Branch     string `json:"branch"`
	Path       string `json:"path,omitempty"`
	Checkout   string `json:"checkout"`
	Secret     string `json:"secret,omitempty"` // the name of one
	Depth      int    `json:"depth,omitempty"`
	Submodules bool   `json:"submodules,omitempty"`
	Commit     string `json:"commit,omitempty"`
	// Variables are names of those that are filled in, as many as there is room for.
	Variables []string `json:"variables,omitempty"`
}

// Encode returns the marker as it is written on the host.
func (m Marker) Encode() ([]byte, error) {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode owner marker: %w", err)
	}
	return append(b, '\n'), nil
}

// ParseMarker reads a marker. Anything but exactly one well-formed marker with
// an owner in it is an error: a half-read proof proves nothing. What a later
// version adds is passed over.
func ParseMarker(b []byte) (Marker, error) {
	if len(b) > maxMarker {
		return Marker{}, fmt.Errorf("owner marker of %d bytes: the limit is %d", len(b), maxMarker)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	var m Marker
	if err := dec.Decode(&m); err != nil {
		return Marker{}, fmt.Errorf("owner marker: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return Marker{}, fmt.Errorf("owner marker: more than one value")
	}
	if m.Kind == "" || !m.Installation.Valid() || !m.Playground.Valid() || m.Project.IsZero() {
		return Marker{}, fmt.Errorf("owner marker: kind, installation, playground or project is missing or malformed")
	}
	return m, nil
}

// Owns reports whether the marker proves that a directory named dir belongs to
// the playground of this installation. Name, number or place alone never do.
func (m Marker) Owns(installation InstallationID, id PlaygroundID, dir Project) bool {
	return m.Kind == KindPlayground && m.Installation == installation && m.Playground == id &&
		!dir.IsZero() && m.Project == dir
}
