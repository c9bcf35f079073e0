package model

import (
	"path"
	"regexp"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// Place is something that has a path on a marquee.
type Place string

// Places, and the names that Path takes for each.
const (
	PlaceRunner      Place = "runner"        // script hash: the installed runner
	PlaceFenceLock   Place = "fence lock"    // installation: held with flock by each operation
	PlaceFenceEpoch  Place = "fence epoch"   // installation: highest lease epoch seen
	PlaceOps         Place = "ops"           // installation: its operations
	PlaceOp          Place = "op"            // installation, operation id
	PlacePlaygrounds Place = "playgrounds"   // no name: what a look lists
	PlacePlayground  Place = "playground"    // project: its directory
	PlaceCompose     Place = "compose file"  // project
	PlaceMarker      Place = "owner marker"  // project
	PlaceLock        Place = "project lock"  // project: held with flock by each operation
	PlaceDockerConf  Place = "docker config" // project: directory of its registry credentials
	PlaceCheckouts   Place = "checkouts"     // project: its working copies
	PlaceAside       Place = "set aside"     // project, operation id: a directory or file taken out of use
	PlaceSwept       Place = "swept"         // installation, project: a directory that the sweep took out of use
)

// layout is relative to the root; each * takes one name.
var layout = map[Place]string{
	PlaceRunner:      "bin/runner-*",
	PlaceFenceLock:   "fence/*/lock",
	PlaceFenceEpoch:  "fence/*/epoch",
	PlaceOps:         "ops/*",
	PlaceOp:          "ops/*/*",
	PlacePlaygrounds: "playgrounds",
	PlacePlayground:  "playgrounds/*",
	PlaceCompose:     "playgrounds/*/compose.yml",
	PlaceMarker:      "playgrounds/*/.fuse/owner.json",
	PlaceLock:        "playgrounds/*/.fuse/lock",
	PlaceDockerConf:  "playgrounds/*/docker-config",
	PlaceCheckouts:   "playgrounds/*/props",
	PlaceAside:       "aside/*/*",
	PlaceSwept:       "swept/*/*",
}

var (
	rootPattern    = regexp.MustCompile(`^(/[A-Za-z0-9_][A-Za-z0-9._-]*){2,8}$`)
	segmentPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
)

// Layout computes every path that Playguard uses on a marquee, all below one
// root.
type Layout struct{ root string }

// DefaultRoot is the root unless a marquee says otherwise.
const DefaultRoot = "/opt/fuse"

// NewLayout takes the root: absolute, clean, at least two directories deep (so
// never a system directory such as /etc) and without characters that a shell
// reads.
func NewLayout(root string) (Layout, error) {
	if !rootPattern.MatchString(root) {
		return Layout{}, fleet.Errorf(fleet.CodeInvalidArgument,
			"root directory %q: want an absolute path of 2 to 8 names of letters, digits, '.', '_' and '-', such as %s", clip(root), DefaultRoot)
	}
	return Layout{root}, nil
}

// Root returns the directory that everything is below.
func (l Layout) Root() string { return l.root }

// Path returns where place is for these names. It is the only way to a path:
// it refuses a wrong number of names, and any name that is not one plain path
// segment, so no result is ever outside the root.
func (l Layout) Path(place Place, names ...string) (string, error) {
	pattern, ok := layout[place]
	if !ok || l.root == "" {
		return "", fleet.Errorf(fleet.CodeInternal, "no path for %q below %q", place, l.root)
	}
	if want := strings.Count(pattern, "*"); len(names) != want {
		return "", fleet.Errorf(fleet.CodeInternal, "path of %s takes %d names, not %d", place, want, len(names))
	}
	for _, name := range names {
		if !segmentPattern.MatchString(name) {
			return "", fleet.Errorf(fleet.CodeInvalidArgument,
				"%q in the path of a %s: want one path segment of at most 128 letters, digits, '.', '_' and '-'", clip(name), place)
		}
		pattern = strings.Replace(pattern, "*", name, 1)
	}
	return l.root + "/" + pattern, nil
}

// Contains reports whether an already resolved path lies below the root; the
// root itself does not.
func (l Layout) Contains(resolved string) bool {
	return l.root != "" && path.Clean(resolved) == resolved && strings.HasPrefix(resolved, l.root+"/")
}
