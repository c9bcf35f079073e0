package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/fleet"
)

// streamEvent is one message of an environment's event stream.
type streamEvent struct {
	ID        string        `json:"id"`
	Event     string        `json:"event"`
	VMID      string        `json:"vm_id"`
	State     fleet.VMState `json:"state"`
	Error     string        `json:"error"`
	UpdatedAt time.Time     `json:"updated_at"`
}

func eventsCmd(a *app) *cobra.Command {
	var since string
	cmd := &cobra.Command{
		Use:   "events ID",
		Short: "Follow an environment's states until it ends",
		Long: "events prints the environment's state and each change of it, and ends when the\n" +
			"environment does. A cut connection is taken up again where it broke.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return follow(a, cmd.Context(), args[0], since)
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "replay what came after this event `id` (0: everything kept)")
	return cmd
}

// errStreamEnded marks the regular end of a stream: the terminal event.
var errStreamEnded = errors.New("stream ended")

func follow(a *app, ctx context.Context, id, last string) error {
	format, err := a.format()
	if err != nil {
		return err
	}
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 200*time.Millisecond, 5*time.Second
	for {
		err := a.stream(ctx, id, last, func(raw []byte, ev streamEvent) error {
			wait.Reset()
			last = ev.ID
			if format == "json" {
				_, err := fmt.Fprintf(a.Streams.Out, "%s\n", raw)
				return err
			}
			text := fmt.Sprintf("%s  %-12s %s", ev.UpdatedAt.Format(time.RFC3339), ev.State, ev.Error)
			_, err := fmt.Fprintln(a.Streams.Out, strings.TrimSpace(text))
			return err
		})
		var refused *answerError
		switch {
		case errors.Is(err, errStreamEnded):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &refused) && refused.status < http.StatusInternalServerError:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait.NextBackOff()):
		}
	}
}

// stream reads one connection's worth of events.
func (a *app) stream(ctx context.Context, id, last string, each func([]byte, streamEvent) error) error {
	header := http.Header{"Accept": {"text/event-stream"}}
	if last != "" {
		header.Set("Last-Event-ID", last)
	}
	resp, err := a.send(ctx, call{method: http.MethodGet, path: environmentPath(id) + "/events", header: header})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var ev streamEvent
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			return fmt.Errorf("decode an event: %w", err)
		}
		if err := each([]byte(data), ev); err != nil {
			return err
		}
		if fleet.IsTerminalState(ev.State) {
			return errStreamEnded
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}
