/* SPDX-License-Identifier: Apache-2.0 */
/* The one system call of the registered buffers, alone so that tests can stand in its way. */
#include "buffers.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

int posix_ring_register(int ring_fd, unsigned int what, void *argument, unsigned int count)
{
	long result;

	/* The library's own call: liburing 2.3 knows neither the copying of tables nor a ring by
	 * its descriptor alone. */
	do
		result = syscall(SYS_io_uring_register, ring_fd, what, argument, count);
	while (result < 0 && errno == EINTR);
	return result < 0 ? -errno : (int)result;
}
