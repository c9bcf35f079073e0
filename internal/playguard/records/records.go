package records

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Kinds of sealed values; the id is the document's.
const (
	SealKindKey     = "marquee_key"
	SealKindVersion = "playground_version"
)

// Hop is one SSH server on the way and how it is known.
type Hop struct {
	Address string `json:"address"` // host:port
	User    string `json:"user,omitempty"`
	HostKey string `json:"host_key"`
}

// Term is the epoch that a term of leadership holds at a marquee.
type Term struct {
	Term  int64  `json:"term"`
	Epoch uint64 `json:"epoch"`
}

// Marquee is a marquee's document.
type Marquee struct {
	model.Marquee
	Name      string         `json:"name"`
	Owner     string         `json:"owner,omitempty"`
	KeySealed []byte         `json:"key_sealed,omitempty"` // private key in PEM form
	Agent     string         `json:"agent,omitempty"`      // socket of an SSH agent on the server
	Jumps     []Hop          `json:"jumps,omitempty"`
	Policy    compose.Policy `json:"policy,omitempty"`
	AdminWhy  string         `json:"admin_why,omitempty"`
	// DefaultExpiry is what new playgrounds there get; zero: they do not end.
	DefaultExpiry time.Duration `json:"default_expiry,omitempty"`
	Term          Term          `json:"term,omitzero"`
	History       []model.Span  `json:"history,omitempty"` // its terms, oldest first
	Sweep         model.Sweep   `json:"sweep,omitzero"`
	CreatedAt     time.Time     `json:"created_at"`
	Revision      uint64        `json:"revision"`
}

// Begin notes the epoch that a term holds there, and from which revision on.
func (m *Marquee) Begin(term int64, epoch, revision uint64) {
	m.Term = Term{Term: term, Epoch: epoch}
	spans := append(slices.Clone(m.History), model.Span{Epoch: epoch, Lineage: strings.ToLower(uid.New()), From: revision})
	m.History = spans[max(0, len(spans)-model.MaxSpans):]
}

// Lineage is the name of the term that holds that epoch; empty if there is none.
func (m *Marquee) Lineage(epoch uint64) string {
	for _, s := range slices.Backward(m.History) {
		if s.Epoch == epoch {
			return s.Lineage
		}
	}
	return ""
}

// Known is what this fleet calls itself there: its own name, unless it took the
// place of another installation.
func (m *Marquee) Known(own model.InstallationID) model.InstallationID {
	return cmp.Or(m.Identity.Installation, own)
}

// Rollout is what became of the last change of a definition.
type Rollout struct {
	At      time.Time     `json:"at"`
	Digest  string        `json:"digest"`
	Result  RolloutResult `json:"result"`
	Failure model.Failure `json:"failure,omitzero"`
}

// RolloutResult is how a rollout ended.
type RolloutResult string

// Results of rollouts. Failed ones leave the version before at work.
const (
	RolloutDone       RolloutResult = "done"
	RolloutFailed     RolloutResult = "failed"
	RolloutSuperseded RolloutResult = "superseded"
)

// Playground is a playground's document. The definitions that Desired and
// Applied name are documents of their own.
type Playground struct {
	model.Playground
	Name        string        `json:"name"`
	Owner       string        `json:"owner"`
	Actor       string        `json:"actor,omitempty"` // of the last action
	Volumes     []string      `json:"volumes,omitempty"`
	Job         string        `json:"job,omitempty"`  // that claimed it; another one's word counts no more
	Step        string        `json:"step,omitempty"` // of that job
	LastRollout *Rollout      `json:"last_rollout,omitempty"`
	Routes      []model.Route `json:"routes,omitempty"`
	Source      Source        `json:"source,omitzero"`
	Pull        model.Pull    `json:"pull,omitempty"`
	Auth        string        `json:"auth,omitempty"`       // digest of the registry credentials that its marquee was given
	Registries  []string      `json:"registries,omitempty"` // that its images come from
	Claimed     bool          `json:"claimed,omitempty"`    // adopted: only its marker says whose it is, and its owner has not brought it up since
	CreatedAt   time.Time     `json:"created_at"`
	UpdatedAt   time.Time     `json:"updated_at"`
}

// Operation is what is kept of one operation on a host. It is written before
// the host is asked, and its end when that is known.
type Operation struct {
	ID         string             `json:"id"`
	Playground model.PlaygroundID `json:"playground"`
	Marquee    model.MarqueeID    `json:"marquee"`
	Kind       model.OpKind       `json:"kind"`
	Why        string             `json:"why"`
	Epoch      uint64             `json:"epoch"`
	Volumes    []string           `json:"volumes,omitempty"` // that it may remove
	StartedAt  time.Time          `json:"started_at"`
	EndedAt    time.Time          `json:"ended_at,omitzero"`
	Lost       bool               `json:"lost,omitempty"`
	Refused    bool               `json:"refused,omitempty"` // the host did not begin it
	Status     int                `json:"status,omitempty"`
	Text       string             `json:"text,omitempty"`
}

// Entry is a document of the collection of operations: one of its fields is
// set. Versions lie there too, by their digest, since operations apply them.
type Entry struct {
	Operation     *Operation `json:"operation,omitempty"`
	VersionSealed []byte     `json:"version_sealed,omitempty"`
	LogSealed     []byte     `json:"log_sealed,omitempty"`
	Decisions     []Decision `json:"decisions,omitempty"` // the last ones about the playground
}

// The collections.
var (
	Marquees    = state.NewCollection[Marquee]("marquees")
	Playgrounds = state.NewCollection[Playground]("playgrounds")
	Entries     = state.NewCollection[Entry]("playground_operations")
)

// MaxOperations is how many ended operations of a playground are kept.
const MaxOperations = 30

func operationKey(p model.PlaygroundID, op string) string { return string(p) + "/op/" + op }

func versionKey(p model.PlaygroundID, digest string) string { return string(p) + "/version/" + digest }

// Installation is what this fleet calls itself on hosts: its id, or where that
// was given and is not made of letters and digits, a hash of it.
func Installation(fleetID string) model.InstallationID {
	id := model.InstallationID(strings.ToLower(fleetID))
	if !id.Valid() {
		sum := sha256.Sum256([]byte(fleetID))
		id = model.InstallationID(hex.EncodeToString(sum[:13]))
	}
	return id
}

// Sealer encrypts secrets.
type Sealer interface {
	Seal(kind, id string, plain []byte) ([]byte, error)
	Open(kind, id string, sealed []byte) ([]byte, error)
}

// Version is one definition of a playground, as its host gets it. It holds
// values of variables, and is stored sealed.
type Version struct {
	Digest   string          `json:"digest"`
	Compose  []byte          `json:"compose"`
	Files    []File          `json:"files,omitempty"`
	Services []model.Service `json:"services"`
	Volumes  []string        `json:"volumes,omitempty"`
}

// File is a file beside the compose file.
type File struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode"`
	Data []byte `json:"data"`
}

// SealVersion makes the document of a version.
func SealVersion(s Sealer, p model.PlaygroundID, v Version) (key string, e Entry, err error) {
	key = versionKey(p, v.Digest)
	raw, err := json.Marshal(v)
	if err != nil {
		return "", e, fmt.Errorf("encode version %s: %w", v.Digest, err)
	}
	if e.VersionSealed, err = s.Seal(SealKindVersion, key, raw); err != nil {
		return "", e, fmt.Errorf("seal version %s: %w", v.Digest, err)
	}
	return key, e, nil
}

// ErrMissing marks a definition that the records do not hold.
var ErrMissing = errors.New("it is not kept any more")

// OpenVersion reads the version of that digest.
func OpenVersion(tx state.Reader, s Sealer, p model.PlaygroundID, digest string) (v Version, err error) {
	key := versionKey(p, digest)
	e, ok := Entries.Get(tx, key)
	if !ok || e.VersionSealed == nil {
		return v, fleet.Errorf(fleet.CodeConflict, "definition %.12s of playground %s: %w", digest, p, ErrMissing).
			With(fleet.DetailRemedy, "give the definition again with up")
	}
	raw, err := s.Open(SealKindVersion, key, e.VersionSealed)
	if err != nil {
		return v, fmt.Errorf("open version %s: %w", digest, err)
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, fmt.Errorf("read version %s: %w", digest, err)
	}
	return v, nil
}

// Of lists the playgrounds of a marquee.
func Of(tx state.Reader, m model.MarqueeID) (out []*Playground) {
	for _, p := range Playgrounds.All(tx) {
		if p.Marquee == m {
			out = append(out, p)
		}
	}
	return out
}

// Stored is how many bytes the definitions of a playground take.
func Stored(tx state.Reader, p model.PlaygroundID) (n int) {
	for _, e := range Entries.Prefix(tx, versionKey(p, "")) {
		n += len(e.VersionSealed)
	}
	return n
}

// PutMarquee writes a marquee.
func PutMarquee(tx *state.Tx, m Marquee) error {
	m.Revision = tx.Revision() + 1
	return Marquees.Put(tx, string(m.ID), &m)
}

// PutPlayground writes a playground, and forgets versions that it does not
// name any more.
func PutPlayground(tx *state.Tx, p Playground) error {
	p.Revision, p.UpdatedAt = tx.Revision()+1, tx.Now()
	if err := Playgrounds.Put(tx, string(p.ID), &p); err != nil {
		return err
	}
	var old []string
	for key := range Entries.Prefix(tx, versionKey(p.ID, "")) {
		if d := strings.TrimPrefix(key, versionKey(p.ID, "")); d != p.Desired && d != p.Applied {
			old = append(old, key)
		}
	}
	return drop(tx, old)
}

// DeletePlayground forgets a playground and all that is kept of it.
func DeletePlayground(tx *state.Tx, id model.PlaygroundID) error {
	var all []string
	for key := range Entries.Prefix(tx, string(id)+"/") {
		all = append(all, key)
	}
	if err := drop(tx, all); err != nil {
		return err
	}
	return Playgrounds.Delete(tx, string(id))
}

func drop(tx *state.Tx, keys []string) error {
	for _, key := range keys {
		if err := Entries.Delete(tx, key); err != nil {
			return err
		}
	}
	return nil
}

// PutOperation writes an operation, and forgets the oldest ended ones of its
// playground.
func PutOperation(tx *state.Tx, op Operation) error {
	if err := Entries.Put(tx, operationKey(op.Playground, op.ID), &Entry{Operation: &op}); err != nil {
		return err
	}
	var ended []string // by id, which is by age
	for key, e := range Entries.Prefix(tx, operationKey(op.Playground, "")) {
		if e.Operation != nil && !e.Operation.EndedAt.IsZero() {
			ended = append(ended, key)
		}
	}
	return drop(tx, ended[:max(0, len(ended)-MaxOperations)])
}

// Operations lists a playground's operations, oldest first.
func Operations(tx state.Reader, p model.PlaygroundID) (out []Operation) {
	for _, e := range Entries.Prefix(tx, operationKey(p, "")) {
		if e.Operation != nil {
			out = append(out, *e.Operation)
		}
	}
	return out
}

// GetOperation returns one.
func GetOperation(tx state.Reader, p model.PlaygroundID, id string) (Operation, bool) {
	e, ok := Entries.Get(tx, operationKey(p, id))
	if !ok || e.Operation == nil {
		return Operation{}, false
	}
	return *e.Operation, true
}

// Store is the part of the state owner that records are changed through.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// ErrMoved is a conflict: the record changed since it was read.
var ErrMoved = fleet.Errorf(fleet.CodeConflict, "the record has changed meanwhile").With(fleet.DetailReason, "moved")

// Unmoved is an error unless the playground is still in the state that was read.
func (p Playground) Unmoved(now *Playground) error {
	if now.State != p.State {
		return ErrMoved
	}
	return nil
}
