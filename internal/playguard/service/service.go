package service

import (
	"context"
	"io"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
)

// Service is Playguard as its callers see it. It is safe for concurrent use.
type Service struct{}

func notYet() error {
	return fleet.Errorf(fleet.CodeUnavailable, "Playguard does not run on this server")
}

// AddMarquee reaches a host, makes the installation's place on it, pins its
// identity and registers it. Without HostKey nothing is done there: the error
// is a conflict of reason host_key_unconfirmed whose details carry host_key and
// fingerprint, for a person to confirm.
func (s *Service) AddMarquee(ctx context.Context, req NewMarquee) (Marquee, error) {
	return Marquee{}, notYet()
}

// Marquees lists marquees by id.
func (s *Service) Marquees(ctx context.Context, o ListOptions) (Page[Marquee], error) {
	return Page[Marquee]{}, notYet()
}

// Marquee returns one by id or name.
func (s *Service) Marquee(ctx context.Context, id string) (Marquee, error) {
	return Marquee{}, notYet()
}

// CheckMarquee looks at a marquee now. A clean look also returns one that the
// loop quarantined. That a point is not well is no error.
func (s *Service) CheckMarquee(ctx context.Context, id string) (Check, error) {
	return Check{}, notYet()
}

// QuarantineMarquee takes a marquee out of the loop until ReturnMarquee: it is
// not reached at all, and nothing on it is touched.
func (s *Service) QuarantineMarquee(ctx context.Context, id, why string) (Marquee, error) {
	return Marquee{}, notYet()
}

// ReturnMarquee takes it back.
func (s *Service) ReturnMarquee(ctx context.Context, id string, req ReturnMarquee) (Marquee, error) {
	return Marquee{}, notYet()
}

// SetPolicy replaces what compose files may do on a marquee, for the next Up.
func (s *Service) SetPolicy(ctx context.Context, id string, p map[string]string) (Marquee, error) {
	return Marquee{}, notYet()
}

// RemoveMarquee forgets a marquee. While playgrounds are on it that is a
// conflict, unless forget says to drop their records too. Nothing on the host
// is touched.
func (s *Service) RemoveMarquee(ctx context.Context, id string, forget bool) error {
	return notYet()
}

// Plan says what Up would do, and does nothing.
func (s *Service) Plan(ctx context.Context, req UpRequest) (Plan, error) {
	return Plan{}, notYet()
}

// Up makes a playground, or gives it a new definition.
func (s *Service) Up(ctx context.Context, req UpRequest) (Playground, error) {
	return Playground{}, notYet()
}

// Playgrounds lists those that the caller sees.
func (s *Service) Playgrounds(ctx context.Context, o ListOptions) (Page[Playground], error) {
	return Page[Playground]{}, notYet()
}

// Playground returns one by id or name.
func (s *Service) Playground(ctx context.Context, id string) (Playground, error) {
	return Playground{}, notYet()
}

// Owner is the owner of a playground, for the edge's rules; false if there is
// none of that id or name.
func (s *Service) Owner(id string) (owner string, ok bool) { return "", false }

// Wait returns once the playground is in a state that lasts (running, error,
// has_changes, completed, stopped) and no job works on it, or is gone, which is
// a not_found error; or when ctx ends, with its error.
func (s *Service) Wait(ctx context.Context, id string) (Playground, error) {
	return Playground{}, notYet()
}

// Explain says why a playground is as it is, and what happens next.
func (s *Service) Explain(ctx context.Context, id string) (Explanation, error) {
	return Explanation{}, notYet()
}

// Act asks something of a playground. An action that its state does not allow
// is a conflict of reason state.
func (s *Service) Act(ctx context.Context, id string, req ActionRequest) (Playground, error) {
	return Playground{}, notYet()
}

// Adopt takes an orphan back into the records.
func (s *Service) Adopt(ctx context.Context, req AdoptRequest) (Playground, error) {
	return Playground{}, notYet()
}

// Forget drops a playground's record and touches nothing on its host.
func (s *Service) Forget(ctx context.Context, id string) error { return notYet() }

// Logs writes containers' output to w, each line as "service | text", until it
// is all there; with Follow until ctx ends, which is no error. An error after
// the first byte was written is worth a line of its own. At most two streams
// are open to a marquee; more is an unavailable error.
func (s *Service) Logs(ctx context.Context, id string, req LogsRequest, w io.Writer) error {
	return notYet()
}

// Exec runs a command in a service's container and returns its exit status.
// Output arrives as it comes. An error means that the command's end is not
// known, never that it failed; one whose caller goes away is told to end.
func (s *Service) Exec(ctx context.Context, id string, req ExecRequest) (status int, err error) {
	return 0, notYet()
}

var _ = model.StateRunning
