package template

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
)

// Seen is what is known when it is decided about a preview's playgrounds.
type Seen struct {
	Now         time.Time
	Preview     Preview
	Branches    []string // of the repository, all of them
	Playgrounds []records.Playground
}

// Plan is what a preview's playgrounds are to be.
type Plan struct {
	Make    []string             // branches that get one
	End     []model.PlaygroundID // their branch is gone
	Keep    []model.PlaygroundID // their end was set, and the branch is back
	Unsure  []model.PlaygroundID // their end was set, and nobody knows of the branch now
	Life    map[model.PlaygroundID]time.Time
	LeftOut []string
}

// Matches reports whether a preview is of a branch: some pattern takes it in, and
// none that begins with ! takes it out.
func (p Preview) Matches(name string) bool {
	in := false
	for _, pattern := range p.Branches {
		out := strings.HasPrefix(pattern, "!")
		if glob(strings.TrimPrefix(pattern, "!"), name) {
			if out {
				return false
			}
			in = true
		}
	}
	return in
}

// glob matches as a shell does; ** also matches what has slashes in it.
func glob(pattern, name string) bool {
	if before, ok := strings.CutSuffix(pattern, "**"); ok && !strings.ContainsAny(before, `*?[\`) {
		return strings.HasPrefix(name, before) && len(name) > len(before)
	}
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

// Decide says which playgrounds a preview makes and which come to their end. None
// is taken away here: one whose end is reached goes by the rules of expiry, which
// ask for work in it.
func Decide(s Seen) Plan {
	plan := Plan{Life: map[model.PlaygroundID]time.Time{}}
	there := map[string]bool{}
	for _, b := range s.Branches {
		there[b] = true
	}
	have := map[string]bool{}
	n := 0
	for _, p := range s.Playgrounds {
		b := p.Source.Branch
		have[b] = true
		n++
		switch {
		case p.Intent == model.IntentGone:
		case !there[b] || !s.Preview.Matches(b):
			if !p.Source.Ended {
				plan.End = append(plan.End, p.ID)
			}
		case p.Source.Ended:
			plan.Keep = append(plan.Keep, p.ID)
			fallthrough
		default:
			if at := latest(p.CreatedAt, p.Source.ChangedAt).Add(s.Preview.Life); s.Preview.Life > 0 && (p.Expiry.IsZero() || at.Sub(p.Expiry.At) > time.Minute) && !p.Source.Ended {
				plan.Life[p.ID] = at
			}
		}
	}
	var wanted []string
	for _, b := range s.Branches {
		if s.Preview.Matches(b) && !have[b] {
			wanted = append(wanted, b)
		}
	}
	slices.Sort(wanted)
	at, _ := slices.BinarySearch(wanted, s.Preview.From)
	wanted = slices.Concat(wanted[at:], wanted[:at])
	room := max(0, min(len(wanted), s.Preview.Most-n))
	plan.Make, plan.LeftOut = wanted[:room:room], wanted[room:]
	return plan
}

// ending lists the playgrounds whose end was set, for their branch was gone.
func ending(rows []records.Playground) (out []model.PlaygroundID) {
	for _, p := range rows {
		if p.Source.Ended && p.Intent != model.IntentGone {
			out = append(out, p.ID)
		}
	}
	return out
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

var notPlain = regexp.MustCompile(`[^a-z0-9]+`)

// NameOf is the name of a branch's playground: of two branches never the same.
func NameOf(preview, branch string) string {
	slug := strings.Trim(notPlain.ReplaceAllString(strings.ToLower(branch), "-"), "-")
	if len(slug) > 30 || slug != branch {
		sum := sha256.Sum256([]byte(branch))
		slug = strings.Trim(slug[:min(len(slug), 24)], "-") + "-" + hex.EncodeToString(sum[:3])
	}
	return preview + "-" + strings.TrimPrefix(slug, "-")
}
