package service

import (
	"io"
	"time"

	"github.com/fusevm/fuse/internal/playguard/addresses"
	"github.com/fusevm/fuse/internal/playguard/compose"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/sshx"
)

// Limits of what a caller gives.
const (
	MaxName      = 80      // bytes of a name
	MaxFiles     = 256     // files of a directory
	MaxFileBytes = 1 << 20 // of one file
	MaxBytes     = 8 << 20 // of all files
	MaxVariables = 512     // and 32 KiB each
	MaxPage      = 200     // objects a page
	DefaultPage  = 50
	MaxTail      = 10_000   // lines of logs before it follows
	MaxStdin     = 1 << 20  // bytes given to a command
	MaxKey       = 64 << 10 // bytes of a private key
	MaxJumps     = 3
)

// Hop is one SSH server and how it is known.
type Hop struct {
	Address string // host or host:port; 22 if it says none
	User    string
	HostKey string // one line, "ssh-ed25519 AAAA…"
}

// NewMarquee registers a Docker host.
type NewMarquee struct {
	Name string
	Hop
	// Key is a private key in PEM form without passphrase; it is sealed and
	// never shown. Agent is the path of an SSH agent's socket on the server,
	// used beside the key or instead of it.
	Key   []byte
	Agent string
	Jumps []Hop  // to go through, nearest first; the same keys are offered
	Root  string // directory there; empty is model.DefaultRoot
	// Policy says what compose files may do there; what it does not name is
	// refused.
	Policy compose.Policy
}

// Marquee is a registered host as people see it.
type Marquee struct {
	ID        model.MarqueeID
	Name      string
	Owner     string
	Address   string
	User      string
	HostKey   string
	Agent     string
	HasKey    bool
	Jumps     []Hop
	Root      string
	Policy    compose.Policy
	CreatedAt time.Time
	// DefaultExpiry is what new playgrounds there get; zero: they do not end.
	DefaultExpiry time.Duration

	Admin      model.Admin // disabled: a person quarantined it
	AdminWhy   string
	Reach      model.Reach
	ReachSince time.Time
	Misses     int    // looks in a row that saw nothing
	Trouble    string // why the last look saw nothing; empty after a clean one
	Identity   model.Identity
	Epoch      uint64
	Revision   uint64

	Playgrounds int
	// LastLook is nil while this server has not looked yet.
	LastLook *LookReport
	NextLook time.Time // zero: this server does not look at it
	Orphans  []Orphan  // ours by their marker and without a record, at the last look
}

// Orphan is something on a host that is provably ours and has no record.
// It can be adopted; see packages rescan and sweeper.
type Orphan struct {
	Project model.Project
	Why     string
}

// LookReport is what one look at a host showed.
type LookReport struct {
	At      time.Time
	Took    time.Duration
	Verdict string // seen, partial, unseen
	Reason  string // of observe.Reasons; empty if all was seen
	Detail  string
	Remedy  string // what a person can do about it

	Docker, Compose, Storage string // versions, "v2 2.40.3", storage driver
	DiskFree                 uint64 // bytes
	Containers, Volumes      int
	Projects                 int
	HostEpoch                uint64
	OddDirs                  int
}

// Check is what a person is told who asks whether a marquee works: every point
// in order, each with what to do if it does not.
type Check struct {
	OK     bool
	Points []CheckPoint
	Look   LookReport
}

// CheckPoint is one of: connect, host key, login, runner, docker, compose, identity.
type CheckPoint struct {
	Name   string
	OK     bool
	Asked  bool // false: an earlier point failed
	Text   string
	Remedy string
}

// ReturnMarquee takes a marquee back that a person or the loop quarantined.
type ReturnMarquee struct {
	// HostKey, if set, replaces the pinned key; only who was shown the new one
	// can give it.
	HostKey string
	// AcceptIdentity pins what the host is now: for one that was reinstalled or
	// got another data root on purpose. Playgrounds that are gone there will
	// show as stopped.
	AcceptIdentity bool
}

// File is one file of the directory. Path is relative, with slashes.
type File struct {
	Path string
	Mode uint32 // permission bits; 0 is 0644
	Data []byte
}

// UpRequest makes a playground of a directory, or gives the one of that name a
// new definition.
type UpRequest struct {
	Name    string // of the playground
	Marquee string // id or name; may be empty for one that exists, and when there is only one marquee
	// Compose is the path of the compose file among Files; empty takes the first
	// of compose.yaml, compose.yml, docker-compose.yaml and docker-compose.yml.
	Compose string
	Files   []File
	// Variables fill in ${NAME}; they win over those of a file .env, which is
	// read if it is among Files.
	Variables map[string]string
	// Policy may only be stricter than the marquee's.
	Policy      compose.Policy
	Pull        model.Pull // when images are fetched before an up
	KeepVolumes bool       // a destroy leaves the named volumes; once said, it stays
	// Expires is when it ends by itself, as model.ParseExpiry reads it; empty leaves
	// it, or for a new one takes the marquee's.
	Expires string
	// Trick, if set, makes it a job; Watch, Since and Attempt are filled in.
	Trick *model.Trick
	// Plan, if set, is the Plan.Token that the caller was shown: if the records
	// have changed since, Up is a conflict and does nothing.
	Plan string
}

// Plan says what an Up would do.
type Plan struct {
	Token     string
	New       bool
	ID        model.PlaygroundID // of an existing one
	Name      string
	Marquee   model.MarqueeID
	MarqueeAs string // its name
	Project   model.Project
	State     model.State // before; empty for a new one
	Changes   []Change    // by service, then volumes, then files
	Unchanged []string    // services that keep running
	Volumes   []string
	Files     []string
	Warnings  []string // of the policy, and of what the marquee's state means for it
	// Refused names a guard that stands in the way, if one is known: the call
	// would be a conflict.
	Refused string
}

// Change is one line of a plan.
type Change struct {
	What string // service, volume, file
	Name string
	Does string // create, replace, remove
	// Detail is what a person wants to see of it: image and ports of a service.
	Detail string
}

// Playground is one Compose environment as people see it.
type Playground struct {
	ID      model.PlaygroundID
	Name    string
	Owner   string
	Marquee model.MarqueeID
	Project model.Project

	Intent      model.Intent
	State       model.State
	StateSince  time.Time
	Step        string // of the job that works on it: files, up, health, rollback, down, stop; empty if none does
	Reason      string
	Attention   model.Attention
	Failure     model.Failure
	KeepVolumes bool
	Expiry      model.Expiry
	Trick       *model.Trick // nil: it is no trick

	Services  []model.Service
	Volumes   []string
	Desired   string // digest of what is wanted
	Applied   string // digest of what the last good up applied
	AppliedAt time.Time
	Source    records.Source // the branch that it follows, if it does
	Pull      model.Pull
	Progress  string // what the operation under way said last
	// Addresses are the ports that are published, as the last look shows them, and
	// the names that a proxy knows.
	Addresses []addresses.Address
	// LastRollout is what became of the last change of the definition; nil
	// before the first.
	LastRollout *Rollout

	CreatedAt, UpdatedAt time.Time
	Revision             uint64
}

// Rollout is one change of a definition.
type Rollout struct {
	At      time.Time
	Digest  string // that was to be
	Result  string // done, failed (the old one stays), superseded
	Failure model.Failure
}

// ListOptions selects and pages. Playgrounds come by id, which is by age.
type ListOptions struct {
	Marquee string // id or name; empty: all
	State   model.State
	After   string // id of the last one of the page before
	Limit   int    // 0 is DefaultPage
}

// Page is part of a list. Next is the After of the page that follows; empty at
// the end.
type Page[T any] struct {
	Items []T
	Next  string
}

// Explanation says what is known of a playground, what was decided about it,
// why, and what happens next.
type Explanation struct {
	Playground Playground
	Look       *LookReport // of its marquee; nil: this server has not looked yet
	Condition  string      // of its containers at that look: healthy, starting, degraded, at_rest, crashed, absent; empty if unseen
	Containers []ContainerView
	Dirt       string // clean, unknown, dirty; and why
	DirtWhy    string
	Decisions  []Decision // newest first, equal ones in a row as one
	Next       []string   // sentences: when the next look is due, and what it would take for something to happen
}

// ContainerView is one container at the last look.
type ContainerView struct {
	Service, Name, State, Health string
	Exit                         int
	Outdated                     bool
}

// Decision is one rule's outcome for one playground. Act is what was done; for
// a refusal Guard names what stood in the way.
type Decision struct {
	First, Last time.Time
	Count       int // looks in a row that led to the same
	Verdict     string
	Rule        string
	Act         string
	Guard       string
	Why         string
	Epoch       uint64
}

// ActionRequest asks something of a playground: one of model.Actions.
type ActionRequest struct {
	Action model.Action
	// KeepVolumes, for destroy, overrides what the record says; nil leaves it.
	KeepVolumes *bool
}

// LogsRequest selects what of the containers' output is wanted.
type LogsRequest struct {
	Services   []string // none: all
	Follow     bool
	Tail       int // lines of each container; 0: all, at most MaxTail
	Since      time.Duration
	Timestamps bool
}

// ExecRequest runs a command in a running container of a service.
type ExecRequest struct {
	Service string
	Command []string
	Env     map[string]string
	User    string
	Workdir string
	Stdin   []byte
	// Input is standard input as it comes, instead of Stdin; Terminal asks for
	// one in the container. Output of both kinds then comes as Stdout.
	Input    io.Reader
	Terminal *sshx.Terminal
	Stdout   io.Writer
	Stderr   io.Writer
}
