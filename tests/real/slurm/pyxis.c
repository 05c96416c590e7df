/* Stands in for pyxis: the options of srun that ray.sub gives, and a root of its own for each task.
 * An image is a file of lines "SOURCE:TARGET", folders of the node, and "NAME=VALUE", variables. The task
 * sees the node's system, these folders and --container-mounts, and nothing else: a missing mount is missed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

SPANK_PLUGIN(pyxis, 1);

#define ROOT "/mnt"
static char image[4096], mounts[65536], workdir[4096], name[4096];

static int keep(int which, const char *value, int remote) {
	char *to[] = {image, mounts, workdir, name};
	if (which < 4)
		snprintf(to[which], which == 1 ? sizeof mounts : 4096, "%s", value);
	return 0;
}

static struct spank_option options[] = {
	{"container-image", "IMAGE", "a file of mounts", 1, 0, keep},
	{"container-mounts", "SOURCE:TARGET,...", "further mounts", 1, 1, keep},
	{"container-workdir", "PATH", "working directory", 1, 2, keep},
	{"container-name", "NAME", "a second task of a name joins the first one", 1, 3, keep},
	{"no-container-mount-home", NULL, "ignored", 0, 4, keep},
	SPANK_OPTIONS_TABLE_END};

int slurm_spank_init(spank_t spank, int count, char **arguments) {
	for (struct spank_option *option = options; option->name; option++)
		if (spank_option_register(spank, option) != ESPANK_SUCCESS)
			return -1;
	return 0;
}

static int fails(const char *what, const char *path) {
	slurm_error("pyxis: %s: %s: %s", what, path, strerror(errno));
	return -1;
}

static void make_folder(char *path) {
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		mkdir(path, 0755);
		*slash = '/';
	}
	mkdir(path, 0755);
}

/* "SOURCE:TARGET[:FLAGS]" */
static int bind(char *mount_of) {
	char target[4096], *source = strsep(&mount_of, ":"), *rest = strsep(&mount_of, ":");
	struct stat found;
	if (stat(source, &found) || !S_ISDIR(found.st_mode))
		return fails("couldn't start container: no such folder", source);
	snprintf(target, sizeof target, ROOT "%s", rest ? rest : source);
	make_folder(target);
	return mount(source, target, NULL, MS_BIND | MS_REC, NULL) ? fails("mount", source) : 0;
}

static int bind_system(void) {
	char *names[] = {"bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "tmp", "usr"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		char path[32], to[32], link[64] = "", both[64];
		snprintf(path, sizeof path, "/%s", names[i]);
		snprintf(to, sizeof to, ROOT "/%s", names[i]);
		snprintf(both, sizeof both, "/%s:/%s", names[i], names[i]);
		if (readlink(path, link, sizeof link - 1) > 0)
			symlink(link, to);
		else if (!access(path, F_OK) && bind(both))
			return -1;
	}
	return 0;
}

/* Into the root of the task that has this name on the node, and whether there is one; else the name is ours. */
static int joined(void) {
	char path[8192], pid[32] = "0";
	snprintf(path, sizeof path, "/dev/shm/pyxis.%s", name);
	FILE *file = fopen(path, "r+");
	if (!file)
		file = fopen(path, "w+");
	if (!*name || !file)
		return 0;
	fscanf(file, "%31s", pid);
	snprintf(path, sizeof path, "/proc/%s/root", pid);
	int root = open(path, O_RDONLY | O_DIRECTORY);
	snprintf(path, sizeof path, "/proc/%s/ns/mnt", pid);
	int mounted = open(path, O_RDONLY);
	rewind(file);
	if (root < 0)
		fprintf(file, "%d\n", getpid());
	fclose(file);
	return root >= 0 && !setns(mounted, CLONE_NEWNS) && !fchdir(root) && !chroot(".");
}

int slurm_spank_task_init_privileged(spank_t spank, int count, char **arguments) {
	char line[8192], *rest = mounts, *next;
	if (!*image)
		return 0;
	FILE *binds = fopen(image, "r");
	if (!binds)
		return fails("failed to import image", image);
	int old = joined();
	if (!old && (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		     mount("none", ROOT, "tmpfs", 0, "mode=755") || bind_system()))
		return fails("no namespace", ROOT);
	while (fgets(line, sizeof line, binds)) {
		line[strcspn(line, "\n")] = 0;
		if (*line != '/' && (next = strchr(line, '='))) {
			*next++ = 0;
			spank_setenv(spank, line, next, 1);
		} else if (!old && bind(line))
			return -1;
	}
	fclose(binds);
	if (old)
		return 0;
	while ((next = strsep(&rest, ",")))
		if (*next && bind(next))
			return -1;
	return chroot(ROOT) || chdir("/") ? fails("chroot", ROOT) : 0;
}

int slurm_spank_task_init(spank_t spank, int count, char **arguments) {
	if (!*image)
		return 0;
	return *workdir && chdir(workdir) ? fails("couldn't chdir", workdir) : 0;
}
