// Package notify holds the verbs of notifications.
package notify

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

type app struct{ kit.Tools }

// Command is "fuse notify" with its verbs.
func Command(t kit.Tools) *cobra.Command {
	a := &app{t}
	cmd := &cobra.Command{
		Use: "notify", Aliases: []string{"notifications"}, Short: "Be told of playgrounds, tricks and marquees by webhook or e-mail", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	mail := &cobra.Command{
		Use: "mail", Short: "How this server sends mail", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	mail.AddCommand(a.setMail(), a.showMail(), a.removeMail())
	cmd.AddCommand(a.add(), a.list(), a.get(), a.test(), a.act("pause", "Stop a route from telling"), a.act("resume", "Let a route go on with what comes from now on"), a.remove(), mail)
	return cmd
}

func (a *app) verb(use, short string, args int, do func(cmd *cobra.Command, n client.Notifications, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(args),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := a.Format(); err != nil {
				return err
			}
			server, err := a.Server()
			if err != nil {
				return err
			}
			return do(cmd, client.NewNotifications(server), args)
		},
	}
}

func (a *app) add() *cobra.Command {
	var req gen.AddNotificationRoute
	var secretFile string
	var window time.Duration
	cmd := a.verb("add NAME", "Tell somebody of what happens from now on", 1, func(cmd *cobra.Command, n client.Notifications, args []string) error {
		req.Name, req.WindowSeconds = args[0], kit.WholeSeconds(window)
		switch {
		case req.URL != "" && len(req.To) > 0 || req.URL == "" && len(req.To) == 0:
			return a.Usage("give --webhook or --email")
		case req.URL != "":
			req.Channel = "webhook"
		default:
			req.Channel = "email"
		}
		if req.Marquee != "" && !cmd.Flags().Changed("scope") {
			req.Scope = "marquee"
		}
		if secretFile != "" {
			raw, err := os.ReadFile(secretFile)
			if err != nil {
				return fmt.Errorf("read the secret: %w", err)
			}
			req.Secret = strings.TrimSpace(string(raw))
		}
		r, err := n.Add(cmd.Context(), req)
		return a.print(r, err)
	})
	cmd.Long = "A route tells of your playgrounds and tricks; --marquee of all on one marquee, and\n" +
		"--scope installation of everything, which are for operators. A webhook is signed after\n" +
		"Standard Webhooks with a secret that is printed this once.\n\n" +
		"Problems, recoveries and warnings are told; --event names what else. Of one kind about one\n" +
		"subject --most messages go out in a --window; what more there is comes as one digest."
	f := cmd.Flags()
	f.StringVar(&req.URL, "webhook", "", "`URL` that gets POST requests")
	f.StringVar(&secretFile, "secret-file", "", "`file` with a secret of your own (whsec_…); one is made without it")
	f.StringSliceVar(&req.To, "email", nil, "`address` that gets mail (repeatable)")
	f.StringVar(&req.Scope, "scope", "player", "`whose` events: player, marquee or installation")
	f.StringVarP(&req.Marquee, "marquee", "m", "", "that of scope marquee")
	f.StringSliceVar(&req.Events, "event", nil, "only these `types`; * stands for anything, such as trick.*")
	f.IntVar(&req.Most, "most", 3, "messages of one kind about one subject in a window")
	f.DurationVar(&window, "window", time.Hour, "that window")
	return cmd
}

func (a *app) print(r gen.NotificationRoute, err error) error {
	if err != nil {
		return err
	}
	format, err := a.Format()
	switch {
	case err != nil:
		return err
	case format == "json":
		return a.PrintJSON(r)
	case format == "name":
		fmt.Fprintln(a.Out, a.Cell(r.ID))
		return nil
	}
	state := "telling"
	if r.Paused {
		state = "paused"
	}
	sent := strconv.FormatInt(r.Sent, 10)
	if !r.LastSent.IsZero() {
		sent += ", the last " + a.Age(time.Now(), r.LastSent) + " ago"
	}
	events := strings.Join(r.Events, ", ")
	if events == "" {
		events = "problems, recoveries and warnings"
	}
	return a.Sheet(a.Out, [][2]string{
		{"name", r.Name}, {"id", r.ID}, {"state", state}, {"scope", r.Scope + " " + r.Marquee}, {"tells", r.Channel + " " + r.URL + strings.Join(r.To, ", ")},
		{"of", events}, {"at most", fmt.Sprintf("%d in %s", r.Most, time.Duration(r.WindowSeconds)*time.Second)}, {"sent", sent},
		{"waiting", strconv.Itoa(r.Pending)}, {"given up", strconv.FormatInt(r.GivenUp, 10)}, {"error", r.Error}, {"owner", r.Owner}, {"secret", r.Secret},
	})
}

func (a *app) list() *cobra.Command {
	cmd := a.verb("ls", "List routes", 0, func(cmd *cobra.Command, n client.Notifications, _ []string) error {
		all, err := n.List(cmd.Context())
		if err != nil {
			return err
		}
		var rows [][]string
		for _, r := range all.Routes {
			state := "telling"
			if r.Paused {
				state = "paused"
			}
			note := r.Error
			if note == "" {
				note = "-"
			}
			rows = append(rows, []string{r.Name, r.ID, r.Scope, r.Channel, state, strconv.FormatInt(r.Sent, 10), strconv.Itoa(r.Pending), note})
		}
		return a.PrintList(all, []string{"NAME", "ID", "SCOPE", "CHANNEL", "STATE", "SENT", "WAITING", "ERROR"}, rows)
	})
	cmd.Aliases = []string{"list"}
	return cmd
}

func (a *app) get() *cobra.Command {
	return a.verb("get ROUTE", "Show a route", 1, func(cmd *cobra.Command, n client.Notifications, args []string) error {
		r, err := n.Get(cmd.Context(), args[0])
		return a.print(r, err)
	})
}

func (a *app) test() *cobra.Command {
	return a.verb("test ROUTE", "Send a message now and say what became of it", 1, func(cmd *cobra.Command, n client.Notifications, args []string) error {
		r, err := n.Act(cmd.Context(), args[0], "test")
		if err := a.print(r, err); err != nil {
			return err
		}
		if r.Error != "" {
			return fmt.Errorf("the test did not arrive: %s", a.Cell(r.Error))
		}
		return nil
	})
}

func (a *app) act(action, short string) *cobra.Command {
	return a.verb(action+" ROUTE", short, 1, func(cmd *cobra.Command, n client.Notifications, args []string) error {
		r, err := n.Act(cmd.Context(), args[0], action)
		return a.print(r, err)
	})
}

func (a *app) remove() *cobra.Command {
	cmd := a.verb("rm ROUTE", "Remove a route, and what waits for it", 1, func(cmd *cobra.Command, n client.Notifications, args []string) error {
		return n.Remove(cmd.Context(), args[0])
	})
	cmd.Aliases = []string{"delete"}
	return cmd
}

func (a *app) setMail() *cobra.Command {
	var req gen.NotificationMail
	var passwordFile, caFile string
	cmd := a.verb("set", "Say how mail is sent", 0, func(cmd *cobra.Command, n client.Notifications, _ []string) error {
		if passwordFile != "" {
			raw, err := readSecret(a.In, passwordFile)
			if err != nil {
				return err
			}
			req.Password = raw
		}
		if caFile != "" {
			raw, err := os.ReadFile(caFile)
			if err != nil {
				return fmt.Errorf("read the certificates: %w", err)
			}
			req.CA = string(raw)
		}
		m, err := n.SetMail(cmd.Context(), req)
		return a.printMail(m, err)
	})
	cmd.Long = "The password is read from a file, or from standard input with '-', sealed on the server\nand shown to nobody. Without it the one that there is stays."
	f := cmd.Flags()
	f.StringVar(&req.Host, "host", "", "mail `server`")
	f.IntVar(&req.Port, "port", 0, "its port (default: 587, or 465 with --tls implicit)")
	f.StringVar(&req.TLS, "tls", "starttls", "`protection`: starttls, implicit or none")
	f.StringVar(&req.User, "user", "", "who logs in there")
	f.StringVar(&passwordFile, "password-file", "", "`file` with the password; - is standard input")
	f.StringVar(&req.From, "from", "", "`address` of the sender")
	f.StringVar(&caFile, "ca-file", "", "`file` with the certificates that sign the server's")
	return cmd
}

func readSecret(in io.Reader, file string) (string, error) {
	var raw []byte
	var err error
	if file == "-" {
		raw, err = io.ReadAll(io.LimitReader(in, 64<<10))
	} else {
		raw, err = os.ReadFile(file)
	}
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	return strings.TrimRight(string(raw), "\r\n"), nil
}

func (a *app) printMail(m gen.NotificationMail, err error) error {
	if err != nil {
		return err
	}
	format, err := a.Format()
	switch {
	case err != nil:
		return err
	case format == "json":
		return a.PrintJSON(m)
	}
	password := "none"
	if m.HasPassword {
		password = "sealed"
	}
	return a.Sheet(a.Out, [][2]string{
		{"server", fmt.Sprintf("%s:%d", m.Host, m.Port)}, {"tls", m.TLS}, {"user", m.User}, {"password", password}, {"from", m.From},
	})
}

func (a *app) showMail() *cobra.Command {
	return a.verb("show", "Show how mail is sent", 0, func(cmd *cobra.Command, n client.Notifications, _ []string) error {
		m, err := n.Mail(cmd.Context())
		return a.printMail(m, err)
	})
}

func (a *app) removeMail() *cobra.Command {
	return a.verb("rm", "Send no mail any more", 0, func(cmd *cobra.Command, n client.Notifications, _ []string) error {
		return n.RemoveMail(cmd.Context())
	})
}
