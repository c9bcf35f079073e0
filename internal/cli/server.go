package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// serverStatusCmd shows who leads. It belongs below "fuse server", which cmd
// makes.
func serverStatusCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show which server leads, since when, and who stands by", Args: cobra.NoArgs,
		Long: "status asks the server at --url, or that of the current context. A standby passes the\n" +
			"question on and adds what it is itself.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := a.format()
			if err != nil {
				return err
			}
			api, err := a.server()
			if err != nil {
				return err
			}
			s, err := api.ServerStatus(cmd.Context())
			if err != nil {
				return err
			}
			if format == "json" {
				return a.printJSON(s)
			}
			lease := "until the process ends"
			if !s.LeaseLasting {
				lease = fmt.Sprintf("%.1f s left unless it is renewed", max(time.Until(s.LeaseExpiresAt).Seconds(), 0))
			}
			fields := [][2]string{
				{"leader", s.Name}, {"address", s.Address}, {"term", strconv.FormatInt(s.Term, 10)}, {"lease", lease},
				{"standbys", strings.Join(s.Standbys, ", ")},
				{"store", fmt.Sprintf("%s, revision %d, event %d", s.Store, s.Revision, s.EventSeq)},
				{"fleet", s.FleetID}, {"version", s.Version}, {"up", age(time.Now(), s.StartedAt)},
			}
			if by := s.AnsweredBy; by.Name != "" {
				fields = append(fields, [2]string{"asked", fmt.Sprintf("%s, a %s; version %s, up %s, lag %.1f s",
					by.Name, by.Role, by.Version, time.Duration(by.UptimeSeconds)*time.Second, by.LagSeconds)})
			}
			return sheet(a.Streams.Out, fields)
		},
	}
}
